//! `corelane start`: one host in the foreground.
//!
//! The main thread becomes core 0, the other cores get a thread each. A service thread waits for SIGTERM and SIGINT: the first stops the host, a second one
//! ends the process at once. Standard output has one line, `ready ...`; everything else is on standard error.
//!
//! It belongs to the binary, not to the library: here, once, all that is generic over the environment is compiled for the ring.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use protocol::ids::HostId;
use runtime::mesh::{Seat, seats};
use runtime::uring::{CoreConfig, CoreError, RingEnv, Spin, run_cores};
use runtime::{Env, uring};
use serde_json::json;
use storage::OpenError;
use tracing_subscriber::EnvFilter;

use broker::cli::output::print;
use broker::cli::{Failure, FailureKind};
use broker::config::{self, Settings, StartFlags};
use broker::crossing::{CoreMesh, CoreReply, CoreRequest};
use broker::directories::DirectoriesError;
use broker::member;
use broker::node::{Node, NodeConfig, StartError};

/// Threads of each core for blocking work.
const OFFLOAD_THREADS: usize = 2;
/// How the names of cores' threads begin.
const CORE_NAME: &str = "core-";
/// The exit code of a process that was told twice to stop, as shells count signals.
const KILLED: i32 = 130;

/// Runs `start` to its end.
pub fn run(flags: StartFlags) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    start_logging(&settings)?;
    let stop = watch_signals().map_err(|error| Failure::failed(format!("can't watch signals: {error}")))?;
    let configs = core_configs(&settings)?;
    let seats = Mutex::new(seats(settings.cores).into_iter().map(Some).collect::<Vec<_>>());
    let host = Mutex::new(Some((settings, stop)));
    let shared = Arc::new((seats, host));
    end_with_any_core();
    let results = run_cores(configs, move |env, core| run_one(env, core, shared.clone()));
    let mut results = results.map_err(|error| core_failure(&error))?;
    results.swap_remove(0)
}

/// A core that panics ends the process, as core 0's panic does: its partitions would else be out of reach while the host seems to live.
fn end_with_any_core() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        if std::thread::current().name().is_some_and(|name| name.starts_with(CORE_NAME)) {
            std::process::abort();
        }
    }));
}

/// What the cores take at their start.
type Shared = (Mutex<Vec<Option<Seat<CoreRequest, CoreReply>>>>, Mutex<Option<(Settings, mpsc::Receiver<&'static str>)>>);

/// Runs one core to its end: core 0 is the host, the others serve their part.
async fn run_one(env: RingEnv, core: usize, shared: Arc<Shared>) -> Result<(), Failure> {
    let missing = || Failure::failed("a core was started twice".to_owned());
    let seat = {
        let mut seats = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        seats.get_mut(core).and_then(Option::take).ok_or_else(missing)?
    };
    let mesh = env.join(seat);
    if core > 0 {
        member::run(env, mesh).await;
        return Ok(());
    }
    let (settings, stop) = shared.1.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(missing)?;
    drop(shared);
    serve(env, mesh, settings, stop).await
}

async fn serve(env: RingEnv, mesh: CoreMesh, settings: Settings, stop: mpsc::Receiver<&'static str>) -> Result<(), Failure> {
    let began = env.now();
    let node = Node::start_with(env.clone(), mesh, node_config(&settings)).await.map_err(start_failure)?;
    let took_ms = u64::try_from(env.now().since(began).as_millis()).unwrap_or(u64::MAX);
    say_what_is_promised(&settings, &env);
    say_ready(&settings, &node, took_ms)?;
    let signal = env.offload(move || stop.recv().unwrap_or("the end of its signal thread")).await;
    tracing::info!(signal, "stopping");
    let began = env.now();
    let stopped = node.stop().await;
    let took_ms = u64::try_from(env.now().since(began).as_millis()).unwrap_or(u64::MAX);
    if stopped.unclean.is_empty() {
        tracing::info!(flushed = stopped.flushed, took_ms, "stopped, everything is on stable storage");
        return Ok(());
    }
    for reason in &stopped.unclean {
        tracing::error!(reason, "not on stable storage");
    }
    Err(Failure::failed(format!("the stop was not clean: {}", stopped.unclean.join("; "))))
}

fn say_what_is_promised(settings: &Settings, env: &RingEnv) {
    tracing::info!(
        "this host stands alone: replication factor 1, min.insync.replicas 1; an acknowledged record is as safe as this host's disk \
         (durability=device: flushed; durability=written: in the kernel's or the drive's hands)"
    );
    if !settings.listen.ip().is_loopback() {
        tracing::warn!(listen = %settings.listen, "--insecure: everybody who reaches this address may read and write everything");
    }
    if !env.is_registered() {
        tracing::warn!("the memory is not registered with io_uring; `corelane doctor` says why and what to do");
    }
}

fn say_ready(settings: &Settings, node: &Node<RingEnv>, took_ms: u64) -> Result<(), Failure> {
    let (out_of_service, partitions) = node.partitions();
    let address = node.native_address();
    if settings.json {
        return print(&json!({
            "event": "ready", "native": address.to_string(), "native_port": address.port(), "core_ports": node.core_ports(), "cluster_id": node.cluster().to_string(),
            "host_id": settings.host_id, "broker_epoch": node.broker_epoch().0, "partitions": partitions,
            "partitions_out_of_service": out_of_service, "pid": std::process::id(), "start_ms": took_ms,
        }));
    }
    print(&format_args!(
        "ready native={address} cores={} cluster={} host={} epoch={} partitions={partitions} out_of_service={out_of_service} pid={} start_ms={took_ms}",
        settings.cores,
        node.cluster(),
        settings.host_id,
        node.broker_epoch(),
        std::process::id(),
    ))
}

fn start_logging(settings: &Settings) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&settings.log).map_err(|error| {
        Failure::usage(format!(
            "log filter {:?}: {error}; allowed are error, warn, info, debug, trace, or MODULE=LEVEL",
            settings.log
        ))
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let set =
        if settings.json { builder.json().try_init() } else { builder.with_ansi(std::io::stderr().is_terminal()).try_init() };
    set.map_err(|error| Failure::failed(format!("can't log: {error}")))
}

/// A thread that passes the first signal on.
fn watch_signals() -> std::io::Result<mpsc::Receiver<&'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (sender, receiver) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                if sender.send(name).is_err() {
                    // The host is stopping or has not begun to wait: a second signal means now.
                    std::process::exit(KILLED);
                }
            }
        });
    })?;
    Ok(receiver)
}

fn core_configs(settings: &Settings) -> Result<Vec<CoreConfig>, Failure> {
    let memory_bytes = usize::try_from(settings.memory_bytes).map_err(|_| Failure::usage("memory is too large"))?;
    let one = |core: usize| CoreConfig {
        name: format!("{CORE_NAME}{core}"),
        cpu: settings.cpus.get(core % settings.cpus.len().max(1)).copied(),
        memory_bytes: memory_bytes / settings.cores,
        spin: match settings.spin {
            config::Spin::Off => Spin::Off,
            config::Spin::For(duration) => Spin::For(duration),
            config::Spin::Always => Spin::Always,
        },
        // Core 0 has one more, which waits for the signal to stop.
        offload_threads: OFFLOAD_THREADS + usize::from(core == 0),
        registration: uring::Registration::Preferred,
        ..CoreConfig::default()
    };
    Ok((0..settings.cores).map(one).collect())
}

fn node_config(settings: &Settings) -> NodeConfig {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    NodeConfig {
        data: settings.data.clone(),
        data_must_exist: settings.data_must_exist,
        listen: settings.listen,
        core_port: settings.core_port,
        host: HostId(settings.host_id),
        holder: format!("corelane, process {} on {name}", std::process::id()),
        host_name: name,
        connections: net::ConnectionLimits {
            connections_max: settings.connections_max,
            connections_per_address_max: settings.connections_per_address_max,
            idle_timeout: settings.idle_timeout,
            ..net::ConnectionLimits::default()
        },
        reserve_bytes: settings.reserve_bytes,
        partitions_max: settings.partitions_max,
    }
}

fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Directories(error @ (DirectoriesError::Io { .. } | DirectoriesError::Open(OpenError::Io { .. }))) => {
            Failure::failed(error.to_string())
        }
        StartError::Directories(error) => Failure::new(FailureKind::Directory, error.to_string()),
        error => Failure::failed(error.to_string()),
    }
}

fn core_failure(error: &CoreError) -> Failure {
    Failure::failed(format!("{error}\nrun `corelane doctor` for what this machine needs"))
}
