//! The wire at its quietest: 1 KiB there and back over loopback, two blocking threads on the processors of broker and generator.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::machine;
use crate::report;

const ECHO_BYTES: usize = 1024;

/// Round trips, in nanoseconds; the first tenth is warm-up.
pub fn run(broker_cpu: usize, generator_cpu: usize, round_trips: u64) -> Result<Histogram<u64>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = machine::spawn_pinned(broker_cpu, move || {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut bytes = [0; ECHO_BYTES];
        while stream.read_exact(&mut bytes).is_ok() {
            stream.write_all(&bytes)?;
        }
        Ok(())
    });
    let client = machine::spawn_pinned(generator_cpu, move || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut bytes = [1; ECHO_BYTES];
        let mut histogram = report::histogram();
        for number in 0..round_trips {
            let start_nanos = machine::now_nanos();
            stream.write_all(&bytes)?;
            stream.read_exact(&mut bytes)?;
            if number >= round_trips / 10 {
                histogram.saturating_record(machine::now_nanos() - start_nanos);
            }
        }
        Ok(histogram)
    });
    let histogram = machine::joined(client).context("the echo's client")?;
    machine::joined(server).context("the echo's server")?;
    Ok(histogram)
}
