//! Rules about who may name what. Each takes sources (or manifests) and gives back what breaks it, one line each.

use std::collections::BTreeMap;

use super::manifest::Manifest;
use super::source::{Source, words};

/// The import table: what each crate's `[dependencies]` may name of this workspace.
const IMPORTS: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("runtime", &["protocol"]),
    ("cluster", &["protocol"]),
    ("storage", &["protocol", "runtime"]),
    ("net", &["protocol", "runtime"]),
    ("shard", &["protocol", "runtime", "cluster", "storage", "net"]),
    ("broker", &["protocol", "runtime", "cluster", "storage", "net", "shard", "corelane-client"]),
    ("client", &["protocol"]),
    ("bench", &["protocol", "runtime", "cluster", "storage", "net", "shard", "broker", "corelane-client"]),
    ("sim", &["protocol", "runtime", "cluster", "storage", "net", "shard", "broker", "corelane-client"]),
];

/// Packages that only some crates may depend on.
const RESERVED_PACKAGES: &[(&str, &[&str])] = &[
    ("glommio", &["runtime"]),
    ("io-uring", &["runtime"]),
    ("rkyv", &["protocol"]),
    ("openraft", &["broker"]),
    ("tokio", &["broker", "client", "bench", "sim"]),
    ("bytes", &["broker", "client", "bench", "sim"]),
];

/// Words that only code below some paths may hold.
const RESERVED_WORDS: &[(&str, &[&str])] = &[
    ("glommio", &["runtime/src/uring"]),
    ("io_uring", &["runtime/src/uring"]),
    ("rkyv", &["protocol/src/"]),
    ("openraft", &["broker/src/controller"]),
    ("unsafe", &["runtime/src/uring"]),
    ("tokio", &["broker/", "client/", "bench/", "sim/"]),
];

/// Where nothing is shared between threads: everything that runs on a core or decides for one.
const CORE_CODE: &[&str] =
    &["protocol/src/", "cluster/src/", "storage/src/", "net/src/", "shard/src/", "broker/src/api", "broker/src/dispatch"];

fn lies_below(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

/// Every crate's `[dependencies]` keep to the import table and the reserved packages; only tests import `sim`.
pub fn imports(manifests: &BTreeMap<String, Manifest>) -> Vec<String> {
    let table: BTreeMap<&str, &[&str]> = IMPORTS.iter().copied().collect();
    let mut broken = Vec::new();
    for (folder, manifest) in manifests {
        let Some(allowed) = table.get(folder.as_str()) else {
            broken.push(format!("{folder}: not in the import table"));
            continue;
        };
        let package = |folder: &str| if folder == "client" { "corelane-client".to_owned() } else { folder.to_owned() };
        let is_ours = |name: &String| IMPORTS.iter().any(|(other, _)| package(other) == **name);
        for name in manifest.normal.iter().filter(|name| is_ours(name)) {
            if !allowed.contains(&name.as_str()) {
                broken.push(format!("{folder} may not import {name}"));
            }
        }
        for name in manifest.dev.iter().filter(|name| is_ours(name)) {
            if !allowed.contains(&name.as_str()) && name != "sim" {
                broken.push(format!("the tests of {folder} may not import {name}"));
            }
        }
        for (reserved, holders) in RESERVED_PACKAGES {
            if manifest.normal.iter().any(|name| name == reserved) && !holders.contains(&folder.as_str()) {
                broken.push(format!("{folder} may not depend on {reserved}"));
            }
        }
        if manifest.values.get("lints.workspace").map(String::as_str) != Some("true") {
            broken.push(format!("{folder}: [lints] workspace = true is missing"));
        }
    }
    broken
}

/// `glommio`, `io_uring`, `rkyv`, `openraft`, `tokio` and `unsafe` are written only where the architecture puts them.
pub fn reserved_words(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test_file()) {
        for (position, word) in source.words() {
            let Some((_, places)) = RESERVED_WORDS.iter().find(|(reserved, _)| *reserved == word) else { continue };
            // A function may be called after the system call; the library is named with a path.
            let is_library = word != "io_uring" || source.code[position + word.len()..].starts_with("::");
            if is_library && !lies_below(&source.path, places) {
                broken.push(format!(
                    "{}:{}: `{word}` is named only below {}",
                    source.path,
                    source.line_of(position),
                    places.join(", ")
                ));
            }
        }
    }
    broken
}

/// Crate roots forbid `unsafe` (all but runtime's) and, where every item is documented, deny missing docs.
pub fn crate_roots(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| !source.is_empty()) {
        let Some((folder, rest)) = source.path.split_once("/src/") else { continue };
        if rest != "lib.rs" && rest != "main.rs" && !(rest.starts_with("bin/") && rest.matches('/').count() == 1) {
            continue;
        }
        let code: String = source.code.split_whitespace().collect();
        if folder != "runtime" && !code.contains("#![forbid(unsafe_code)]") {
            broken.push(format!("{}: #![forbid(unsafe_code)] is missing", source.path));
        }
        if ["protocol", "runtime", "cluster", "storage"].contains(&folder)
            && rest == "lib.rs"
            && !code.contains("#![deny(missing_docs)]")
        {
            broken.push(format!("{}: #![deny(missing_docs)] is missing", source.path));
        }
    }
    broken
}

/// Deciders are synchronous: no `async` and no `.await` in cluster and in the shard's partition.
pub fn deciders_are_synchronous(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| {
        lies_below(&source.path, &["cluster/src/", "protocol/src/", "shard/src/partition.rs", "shard/src/partition/"])
    }) {
        for (position, word) in source.words().filter(|(position, _)| !source.in_tests(*position)) {
            if word == "async" || word == "await" {
                broken.push(format!("{}:{}: `{word}` in a decider: decide, do, settle", source.path, source.line_of(position)));
            }
        }
    }
    broken
}

/// Nothing on a core is shared with another thread, and disks are reached through `Env` only.
pub fn core_code_is_single_threaded(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| lies_below(&source.path, CORE_CODE)) {
        let offline = lies_below(&source.path, &["storage/src/inspect"]);
        for (position, word) in source.words().filter(|(position, _)| !source.in_tests(*position)) {
            let shared = ["Arc", "Mutex", "RwLock", "Condvar"].contains(&word) || word.starts_with("Atomic") && word.len() > 6;
            let ambient = !offline && source.code[..position].ends_with("std::") && word == "fs";
            if shared || ambient {
                broken.push(format!("{}:{}: `{word}` in a core's code", source.path, source.line_of(position)));
            }
        }
    }
    broken
}

/// Where cores and other threads meet in the runtime; all else of it is of one thread.
const MEETING_PLACES: &[&str] = &[
    "runtime/src/mesh.rs",
    "runtime/src/mesh/",
    "runtime/src/woken.rs",
    "runtime/src/uring/cores.rs",
    "runtime/src/uring/lending.rs",
    "runtime/src/uring/pool.rs",
];

/// In the runtime, atomics and locks are only where threads meet.
pub fn threads_meet_in_few_places(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    let runtime = sources.iter().filter(|source| lies_below(&source.path, &["runtime/src/"]));
    for source in runtime.filter(|source| !lies_below(&source.path, MEETING_PLACES)) {
        for (position, word) in source.words().filter(|(position, _)| !source.in_tests(*position)) {
            if ["Mutex", "RwLock", "Condvar"].contains(&word) || word.starts_with("Atomic") && word.len() > 6 {
                let line = source.line_of(position);
                broken.push(format!("{}:{line}: `{word}` where no threads meet", source.path));
            }
        }
    }
    broken
}

/// storage, net and shard know the environment's traits, not the ring behind them.
pub fn ring_stays_behind_the_traits(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| lies_below(&source.path, &["storage/src/", "net/src/", "shard/src/"])) {
        for (position, word) in source.words().filter(|(position, _)| !source.in_tests(*position)) {
            let memory = source.code[position..].starts_with("uring::memory");
            if word == "uring" && source.code[..position].ends_with("runtime::") && !memory {
                broken.push(format!(
                    "{}:{}: the ring is named: use the traits of runtime",
                    source.path,
                    source.line_of(position)
                ));
            }
        }
    }
    broken
}

/// No half-finished work: `todo!`, `unimplemented!`, `dbg!`, `#[ignore]`, and marks in comments.
pub fn nothing_is_half_done(sources: &[Source]) -> Vec<String> {
    let marks = ["TO", "FIX", "XX"].map(|half| {
        format!(
            "{half}{}",
            if half == "TO" {
                "DO"
            } else if half == "FIX" {
                "ME"
            } else {
                "X"
            }
        )
    });
    let mut broken = Vec::new();
    for source in sources {
        for (position, word) in source.words() {
            let is_macro =
                source.code[position + word.len()..].starts_with('!') && ["todo", "unimplemented", "dbg"].contains(&word);
            let is_ignored = word == "ignore" && source.code[..position].trim_end().ends_with("#[");
            if is_macro || is_ignored {
                broken.push(format!("{}:{}: `{word}`", source.path, source.line_of(position)));
            }
        }
        for (position, word) in words(&source.text) {
            let comment = source.code[position..position + word.len()].trim().is_empty();
            if comment && marks.iter().any(|mark| mark == word) {
                broken.push(format!(
                    "{}:{}: a mark for later: finish it, or write it into an issue",
                    source.path,
                    source.line_of(position)
                ));
            }
        }
    }
    broken
}

/// An allowed lint says why.
pub fn allowed_lints_have_reasons(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources {
        for start in
            ["#[allow(", "#![allow(", "#[expect("].iter().flat_map(|open| source.code.match_indices(open).map(|(at, _)| at))
        {
            let attribute = source.code[start..].split(']').next().unwrap_or("");
            if !attribute.contains("reason") && !source.in_tests(start) {
                broken.push(format!("{}:{}: an allowed lint without a reason", source.path, source.line_of(start)));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(folder: &str, text: &str) -> BTreeMap<String, Manifest> {
        BTreeMap::from([(folder.to_owned(), Manifest::parse(&format!("{text}\n[lints]\nworkspace = true\n")))])
    }

    fn one(rule: fn(&[Source]) -> Vec<String>, path: &str, text: &str) -> usize {
        rule(&[Source::new(path, text)]).len()
    }

    #[test]
    fn a_forbidden_import_is_found() {
        assert_eq!(imports(&manifest("storage", "[dependencies]\nprotocol.workspace = true\n")), Vec::<String>::new());
        assert_eq!(
            imports(&manifest("storage", "[dependencies]\ncluster.workspace = true\n")),
            ["storage may not import cluster"]
        );
        assert_eq!(imports(&manifest("shard", "[dependencies]\nsim.workspace = true\n")), ["shard may not import sim"]);
        assert_eq!(imports(&manifest("shard", "[dev-dependencies]\nsim.workspace = true\n")), Vec::<String>::new());
        assert_eq!(imports(&manifest("net", "[dependencies]\ntokio.workspace = true\n")), ["net may not depend on tokio"]);
        assert_eq!(imports(&manifest("client", "[dependencies]\nrkyv.workspace = true\n")), ["client may not depend on rkyv"]);
        assert_eq!(imports(&manifest("extra", "")), ["extra: not in the import table"]);
        let unlinted = BTreeMap::from([("net".to_owned(), Manifest::parse("[dependencies]\n"))]);
        assert_eq!(imports(&unlinted), ["net: [lints] workspace = true is missing"]);
    }

    #[test]
    fn a_reserved_word_in_the_wrong_place_is_found() {
        assert_eq!(one(reserved_words, "storage/src/a.rs", "use glommio::x;"), 1);
        assert_eq!(one(reserved_words, "runtime/src/disk.rs", "use io_uring::x;"), 1);
        assert_eq!(one(reserved_words, "runtime/src/disk.rs", "unsafe { x() }"), 1);
        assert_eq!(one(reserved_words, "runtime/src/uring/ring.rs", "use io_uring::x; unsafe { x() }"), 0);
        assert_eq!(one(reserved_words, "shard/src/a.rs", "tokio::spawn(x)"), 1);
        assert_eq!(one(reserved_words, "shard/src/a.rs", "// glommio\nlet a = \"tokio\";"), 0);
    }

    #[test]
    fn a_crate_root_without_its_attributes_is_found() {
        assert_eq!(one(crate_roots, "net/src/lib.rs", "//! n\npub mod connection;\npub mod reply_queue;\n"), 1);
        assert_eq!(one(crate_roots, "net/src/lib.rs", "#![forbid(unsafe_code)]"), 0);
        assert_eq!(one(crate_roots, "storage/src/lib.rs", "#![forbid(unsafe_code)]\npub mod x;"), 1);
        assert_eq!(one(crate_roots, "sim/src/bin/x.rs", "fn main() { run_it_all_and_report_what_came_out(); }"), 1);
        assert_eq!(one(crate_roots, "sim/src/other.rs", "fn x() {}"), 0);
    }

    #[test]
    fn an_asynchronous_decider_is_found() {
        assert_eq!(one(deciders_are_synchronous, "cluster/src/replica.rs", "async fn x() {}"), 1);
        assert_eq!(one(deciders_are_synchronous, "shard/src/partition.rs", "x.await"), 1);
        assert_eq!(one(deciders_are_synchronous, "shard/src/purgatory.rs", "x.await"), 0);
    }

    #[test]
    fn sharing_between_threads_is_found() {
        assert_eq!(one(core_code_is_single_threaded, "shard/src/a.rs", "use std::sync::Arc;"), 1);
        assert_eq!(one(core_code_is_single_threaded, "net/src/a.rs", "static X: AtomicU64 = y;"), 1);
        assert_eq!(one(core_code_is_single_threaded, "storage/src/a.rs", "std::fs::read(x)"), 1);
        assert_eq!(one(core_code_is_single_threaded, "storage/src/inspect.rs", "std::fs::read(x)"), 0);
        assert_eq!(one(core_code_is_single_threaded, "broker/src/config.rs", "use std::sync::Arc;"), 0);
    }

    #[test]
    fn an_atomic_beside_the_meeting_places_is_found() {
        assert_eq!(one(threads_meet_in_few_places, "runtime/src/uring/ring.rs", "static X: AtomicU64 = y;"), 1);
        assert_eq!(one(threads_meet_in_few_places, "runtime/src/mesh/bell.rs", "static X: AtomicU64 = y;"), 0);
        assert_eq!(one(threads_meet_in_few_places, "runtime/src/uring/ring.rs", "use std::sync::Arc;"), 0);
    }

    #[test]
    fn the_ring_named_above_the_runtime_is_found() {
        assert_eq!(one(ring_stays_behind_the_traits, "net/src/a.rs", "use runtime::uring::Ring;"), 1);
        assert_eq!(one(ring_stays_behind_the_traits, "net/src/a.rs", "use runtime::uring::memory::Chunk;"), 0);
    }

    #[test]
    fn half_done_work_is_found() {
        assert_eq!(one(nothing_is_half_done, "net/src/a.rs", "fn x() { todo!() }"), 1);
        assert_eq!(one(nothing_is_half_done, "net/src/a.rs", "#[test]\n#[ignore]\nfn x() {}"), 1);
        assert_eq!(one(nothing_is_half_done, "net/src/a.rs", &format!("// {}{}: later", "TO", "DO")), 1);
        assert_eq!(one(nothing_is_half_done, "net/src/a.rs", "fn ignore() {} // to do"), 0);
    }

    #[test]
    fn an_allowed_lint_without_a_reason_is_found() {
        assert_eq!(one(allowed_lints_have_reasons, "net/src/a.rs", "#[allow(dead_code)]\nfn x() {}"), 1);
        assert_eq!(one(allowed_lints_have_reasons, "net/src/a.rs", "#[allow(dead_code, reason = \"x\")]\nfn x() {}"), 0);
    }
}
