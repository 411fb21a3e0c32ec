//! The harness judged by writers whose honesty is known: one acknowledges after its flush, one before it. The
//! first must pass everywhere, the other must be found.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::coverage::{self, Claim};
use super::plan::{Mode, cuts};
use super::rig::FileSystem;
use super::session::{record, replay};
use crate::real::load::{MARKER_BYTES, id_of, marker};
use crate::real::monotonic_ns;

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 512;

/// When a writer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// Write, flush, acknowledge.
    Honest,
    /// Write, acknowledge; flush every eighth time.
    BeforeTheFlush,
}

/// A block of one marker, at an address that direct I/O takes.
struct Block {
    memory: Vec<u8>,
    start: usize,
}

impl Block {
    fn new() -> Block {
        let memory = vec![0; 2 * BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Block { memory, start }
    }

    fn filled(&mut self, id: u64) -> &[u8] {
        let block = &mut self.memory[self.start..self.start + BLOCK_BYTES];
        block.copy_from_slice(&marker(id).repeat(BLOCK_BYTES / MARKER_BYTES));
        block
    }
}

fn write(writer: Writer, mount: &Path) -> Result<Vec<Claim>> {
    let path = mount.join("blocks");
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits())?;
    let file = File::options().create(true).truncate(true).write(true).custom_flags(direct).open(path)?;
    let mut block = Block::new();
    for number in 0..BLOCKS {
        file.write_all_at(&block.memory[block.start..][..BLOCK_BYTES], number * 4096)?;
    }
    file.sync_all()?;
    File::open(mount)?.sync_all()?;
    let mut claims = Vec::new();
    for number in 0..BLOCKS {
        file.write_all_at(block.filled(number + 1), number * 4096)?;
        if writer == Writer::Honest || number % 8 == 7 {
            file.sync_data()?;
        }
        claims.push(Claim { id: number + 1, markers: BLOCK_BYTES / MARKER_BYTES, at: monotonic_ns() });
        crate::real::pause(Duration::from_micros(200));
    }
    Ok(claims)
}

fn check(mount: &Path, claims: &[Claim], at: u64) -> Result<String> {
    if claims.iter().all(|claim| claim.at >= at) {
        return Ok(String::new()); // Cut before the file was there.
    }
    let file = File::open(mount.join("blocks"))?;
    let mut block = vec![0; BLOCK_BYTES];
    for claim in claims.iter().filter(|claim| claim.at < at) {
        file.read_exact_at(&mut block, (claim.id - 1) * 4096)?;
        ensure!(id_of(&block) == Some(claim.id), "acknowledged block {} is not there", claim.id);
    }
    Ok(String::new())
}

/// Records both writers and judges the judges. Gives back what passed and what failed.
///
/// # Errors
/// The harness itself failed.
pub fn run(workdir: &Path, file_system: FileSystem, points: usize) -> Result<(usize, usize)> {
    let (mut passed, mut failed) = (0, 0);
    let mut verdict = |name: &str, right: bool| {
        println!("{name}: {}", if right { "as it must be" } else { "FAILED" });
        if right { passed += 1 } else { failed += 1 }
    };
    for writer in [Writer::Honest, Writer::BeforeTheFlush] {
        let honest = writer == Writer::Honest;
        let (recording, claims) = record(workdir, file_system, |mount| write(writer, mount))?;
        let uncovered = coverage::judge(&recording, &claims)?.len();
        verdict(
            &format!("{writer:?}: {uncovered} of {} acknowledgements before their flush, by the trace", claims.len()),
            honest == (uncovered == 0),
        );
        let moments: Vec<u64> = claims.iter().map(|claim| claim.at).collect();
        let cuts = cuts(&recording, Mode::Torn, points, 1, &moments);
        let result = replay(workdir, file_system, &recording, &cuts, |mount, cut| check(mount, &claims, cut.at))?;
        verdict(
            &format!("{writer:?}: {} of {} torn replays lost a block", result.failed, cuts.len()),
            honest == (result.failed == 0),
        );
        for cut in &cuts {
            drop(std::fs::remove_file(workdir.join(format!("failed-{}.img", cut.point))));
        }
    }
    Ok((passed, failed))
}
