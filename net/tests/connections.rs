//! Connections on the simulated network: order, limits, deadlines, back-pressure, and what is freed when they end.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use net::{Call, ConnectionLimits, Frame, Native, Refused, RequestContext, Response, Server, Service};
use protocol::frame::{FLAG_REPLY, FrameFields, FrameHeader, HEADER_BYTES, encode_frame};
use protocol::limits;
use protocol::native::Kind;
use runtime::local::Notify;
use runtime::{Chunk, Connection, Env, SendPart, Sharing, Transport};
use sim::{SimConnection, SimEnv, run};

/// Does what the body says: `echo`, `later MS`, `big BYTES`, `silent`, `close`, `never`.
#[derive(Clone)]
struct Toy(Rc<ToyState>);

struct ToyState {
    env: SimEnv,
    called: RefCell<Vec<u64>>,
    parked: Rc<Cell<usize>>,
    held: Cell<bool>,
    /// What stands for a cache.
    cached: RefCell<Vec<Chunk>>,
    changed: Notify,
}

struct Parked {
    work: Pin<Box<dyn Future<Output = Response>>>,
    count: Rc<Cell<usize>>,
}

impl Future for Parked {
    type Output = Response;
    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<Response> {
        self.work.as_mut().poll(context)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
    }
}

impl Toy {
    fn new(env: &SimEnv) -> Toy {
        Toy(Rc::new(ToyState {
            env: env.clone(),
            called: RefCell::default(),
            parked: Rc::default(),
            held: Cell::new(false),
            cached: RefCell::default(),
            changed: Notify::new(),
        }))
    }

    fn later(&self, work: impl Future<Output = Response> + 'static, bytes_max: usize) -> Call<Parked> {
        let count = self.0.parked.clone();
        count.set(count.get() + 1);
        Call::Later { reply: Parked { work: Box::pin(work), count }, bytes_max }
    }
}

fn reply_to(header: &FrameHeader, payload: SendPart) -> Response {
    let bytes = payload.as_bytes().len();
    let fields = FrameFields {
        kind: Kind::Metadata,
        kind_version: 1,
        flags: FLAG_REPLY,
        correlation: header.correlation,
        payload_bytes: bytes,
    };
    Response::from(runtime::SendParts::from_iter([SendPart::Owned(encode_frame(&fields, b"").unwrap()), payload]))
}

impl Service<Native> for Toy {
    type Reply = Parked;

    fn open(&self, _: &RequestContext) -> Result<(), Refused> {
        Ok(())
    }

    fn call(&self, _: &mut RequestContext, frame: Frame<FrameHeader>) -> Call<Parked> {
        let header = frame.header;
        self.0.called.borrow_mut().push(header.correlation);
        let text = String::from_utf8(frame.body.to_vec()).unwrap();
        let (word, number) = text.split_once(' ').unwrap_or((&text, "0"));
        let number: u64 = number.parse().unwrap();
        let env = self.0.env.clone();
        match word {
            "echo" => Call::Ready(reply_to(&header, SendPart::Chunk(frame.payload))),
            "later" => self.later(
                async move {
                    env.sleep(Duration::from_millis(number)).await;
                    reply_to(&header, SendPart::Chunk(frame.payload))
                },
                64,
            ),
            "big" => {
                let mut chunk = env.region().take(usize::try_from(number).unwrap()).unwrap();
                chunk.append(&vec![7; usize::try_from(number).unwrap()]);
                Call::Ready(reply_to(&header, SendPart::Chunk(chunk.freeze())))
            }
            "silent" => Call::NoReply,
            "never" => self.later(std::future::pending(), 64),
            "close" => Call::Close { last: Some(reply_to(&header, SendPart::Owned(Box::new([9])))), reason: "asked to".into() },
            other => panic!("{other}"),
        }
    }

    async fn ready(&self, _: &FrameHeader) {
        while self.0.held.get() {
            let seen = self.0.changed.count();
            self.0.changed.changed(seen).await;
        }
    }

    fn make_room(&self, _: usize) {
        self.0.cached.borrow_mut().pop();
    }
}

fn request(correlation: u64, body: &str, payload: &[u8]) -> Vec<u8> {
    let fields = FrameFields::request(Kind::Metadata, 1, correlation).with_payload(payload.len());
    [&encode_frame(&fields, body.as_bytes()).unwrap()[..], payload].concat()
}

struct Client(SimConnection);

impl Client {
    async fn send(&self, correlation: u64, body: &str, payload: &[u8]) {
        self.0.send_bytes(request(correlation, body, payload)).await.unwrap();
    }

    /// The next reply, or `None` if the connection ended.
    async fn reply(&self) -> Option<(u64, Vec<u8>)> {
        let mut head = [0; HEADER_BYTES];
        if !self.0.receive_exact(&mut head).await.unwrap_or(false) {
            return None;
        }
        let header = FrameHeader::parse(&head).unwrap();
        let mut rest = vec![0; header.body_bytes() + header.payload_bytes()];
        if !rest.is_empty() && !self.0.receive_exact(&mut rest).await.unwrap_or(false) {
            return None;
        }
        Some((header.correlation, rest))
    }

    /// Ends when the server has closed the connection; says how long that took.
    async fn closed(&self, env: &SimEnv) -> Duration {
        let began = env.now();
        while self.0.receive_some(1 << 20).await.is_ok_and(|bytes| !bytes.is_empty()) {}
        env.now().since(began)
    }
}

type Toys = Server<SimEnv, Native, Toy>;

async fn start(env: &SimEnv, connection_limits: ConnectionLimits) -> (Toy, Toys, SocketAddr) {
    let listener = env.transport().listen(env.address(), Sharing::Alone).await.unwrap();
    let toy = Toy::new(env);
    let server = Server::new(env.clone(), listener, "native", toy.clone(), connection_limits);
    env.spawn(server.clone().run());
    let address = server.local_address();
    (toy, server, address)
}

async fn connect(env: &SimEnv, address: SocketAddr) -> Client {
    Client(env.connect(address).await.unwrap())
}

#[test]
fn t76_pipelined_requests_are_called_and_answered_in_order() {
    for seed in 0..50 {
        run(seed, |env| async move {
            let (toy, server, address) = start(&env, ConnectionLimits::default()).await;
            let client = connect(&env, address).await;
            let mut all = Vec::new();
            for n in 0..100_u64 {
                let body = if n % 3 == 0 { format!("later {}", 50 - n % 50) } else { "echo".into() };
                all.extend(request(n, &body, &vec![u8::try_from(n).unwrap(); usize::try_from(n * 700).unwrap()]));
            }
            let sender = client.0.clone();
            env.spawn_client(async move { sender.send_bytes(all).await.unwrap() });
            for n in 0..100_u64 {
                let (correlation, payload) = client.reply().await.unwrap();
                assert_eq!(correlation, n);
                assert_eq!(payload, vec![u8::try_from(n).unwrap(); usize::try_from(n * 700).unwrap()]);
            }
            assert_eq!(*toy.0.called.borrow(), (0..100).collect::<Vec<_>>());
            server.stop(Duration::from_secs(1)).await;
            assert_eq!(env.region().free_bytes(), env.region().bytes());
        });
    }
}

#[test]
fn a_request_without_reply_and_a_last_reply() {
    run(1, |env| async move {
        let (_, server, address) = start(&env, ConnectionLimits::default()).await;
        let client = connect(&env, address).await;
        client.send(1, "silent", b"").await;
        client.send(2, "later 20", b"").await;
        client.send(3, "close", b"").await;
        client.send(4, "echo", b"").await;
        assert_eq!(client.reply().await.unwrap().0, 2);
        assert_eq!(client.reply().await.unwrap().0, 3);
        assert_eq!(client.reply().await, None);
        env.sleep(Duration::from_millis(10)).await;
        assert_eq!(server.connection_count(), 0);
    });
}

#[test]
fn t82_a_connection_that_says_nothing_or_half_a_frame_is_closed() {
    run(2, |env| async move {
        let (_, server, address) = start(&env, ConnectionLimits::default()).await;
        let first = Duration::from_millis(limits::FIRST_REQUEST_TIMEOUT_MS);
        let slack = Duration::from_millis(2500);
        let silent = connect(&env, address).await;
        let took = silent.closed(&env).await;
        assert!(took >= first && took < first + slack, "{took:?}");

        // One byte a second doesn't help.
        let loris = connect(&env, address).await;
        let bytes = request(1, "echo", &[1; 100]);
        let drip = loris.0.clone();
        env.spawn_client(async move {
            for byte in bytes {
                if drip.send_bytes(vec![byte]).await.is_err() {
                    return;
                }
                futures_lite::future::yield_now().await;
            }
        });
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(loris.reply().await.unwrap().0, 1);

        let partial = Duration::from_millis(limits::PARTIAL_FRAME_TIMEOUT_MS);
        let sender = loris.0.clone();
        let ticker = env.clone();
        env.spawn_client(async move {
            for byte in request(2, "echo", &[1; 5000]) {
                if sender.send_bytes(vec![byte]).await.is_err() {
                    return;
                }
                ticker.sleep(Duration::from_secs(1)).await;
            }
        });
        let took = loris.closed(&env).await;
        assert!(took >= partial && took < partial + slack, "{took:?}");
        assert_eq!(server.counters().timed_out.get(), 2);
        assert_eq!(server.connection_count(), 0);
    });
}

#[test]
fn an_idle_connection_is_closed_but_not_one_that_waits_for_a_reply() {
    run(3, |env| async move {
        let (_, server, address) = start(&env, ConnectionLimits::default()).await;
        let idle = Duration::from_millis(limits::CONNECTION_IDLE_TIMEOUT_MS);
        let quiet = connect(&env, address).await;
        quiet.send(1, "echo", b"").await;
        quiet.reply().await.unwrap();
        let waiting = connect(&env, address).await;
        waiting.send(1, &format!("later {}", 3 * limits::CONNECTION_IDLE_TIMEOUT_MS), b"").await;
        let took = quiet.closed(&env).await;
        assert!(took >= idle && took < idle + Duration::from_secs(3), "{took:?}");
        assert_eq!(waiting.reply().await.unwrap().0, 1);
        assert_eq!(server.connection_count(), 1);
    });
}

#[test]
fn requests_in_flight_are_bounded() {
    run(4, |env| async move {
        let (toy, _server, address) = start(&env, ConnectionLimits::default()).await;
        let client = connect(&env, address).await;
        let all: Vec<u8> = (0..1000).flat_map(|n| request(n, "never", b"")).collect();
        client.0.send_bytes(all).await.unwrap();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(toy.0.called.borrow().len(), limits::REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX);
        client.0.close();
    });
}

#[test]
fn t83_t92_a_peer_that_goes_away_frees_what_waits() {
    run(5, |env| async move {
        let (toy, server, address) = start(&env, ConnectionLimits::default()).await;
        let clients: Vec<Client> = futures_lite::stream::StreamExt::collect(futures_lite::stream::unfold(0, |n| {
            let env = env.clone();
            async move { (n < 20).then_some((connect(&env, address).await, n + 1)) }
        }))
        .await;
        for client in &clients {
            for n in 0..10 {
                client.send(n, "never", &[1; 3000]).await;
            }
        }
        env.sleep(Duration::from_millis(100)).await;
        assert_eq!(toy.0.parked.get(), 200);
        for client in &clients {
            client.0.close();
        }
        env.sleep(Duration::from_millis(100)).await;
        assert_eq!((toy.0.parked.get(), server.connection_count()), (0, 0));
        assert_eq!(env.region().free_bytes(), env.region().bytes());
    });
}

#[test]
fn t90_a_slow_reader_holds_a_bounded_share_and_is_closed() {
    run(6, |env| async move {
        let (toy, server, address) = start(&env, ConnectionLimits::default()).await;
        let client = connect(&env, address).await;
        let all: Vec<u8> = (0..100).flat_map(|n| request(n, &format!("big {}", 4 << 20), b"")).collect();
        client.0.send_bytes(all).await.unwrap();
        env.sleep(Duration::from_secs(5)).await;
        let held = env.region().bytes() - env.region().free_bytes();
        assert!(held <= limits::REPLY_BYTES_PER_CONNECTION_MAX + 2 * (4 << 20), "{held} bytes are held");
        assert!(toy.0.called.borrow().len() < 10);
        // It is closed by the deadline of a send, and everything is free again.
        env.sleep(Duration::from_millis(limits::SEND_TIMEOUT_MS + 2500)).await;
        assert_eq!((server.connection_count(), server.counters().timed_out.get()), (0, 1));
        assert_eq!(env.region().free_bytes(), env.region().bytes());
    });
}

#[test]
fn t80_heads_that_promise_much_hold_little() {
    run(7, |env| async move {
        let (_, server, address) = start(&env, ConnectionLimits::default()).await;
        let mut clients = Vec::new();
        for n in 0..500 {
            let client = connect(&env, address).await;
            let frame = request(n, "echo", &vec![1; limits::FRAME_PAYLOAD_BYTES_MAX]);
            client.0.send_bytes(frame[..40].to_vec()).await.unwrap();
            clients.push(client);
            env.sleep(Duration::from_millis(5)).await;
        }
        env.sleep(Duration::from_secs(3)).await;
        let held = env.region().bytes() - env.region().free_bytes();
        assert_eq!(server.connection_count(), 500);
        assert!(held <= 500 * limits::BLOCK_BYTES, "{held} bytes are held for {} that arrived", 500 * 40);
    });
}

#[test]
fn without_memory_a_connection_waits_for_some() {
    run(8, |env| async move {
        let (_, _server, address) = start(&env, ConnectionLimits::default()).await;
        let hoard: Vec<_> =
            (12..=24).rev().flat_map(|order| std::iter::from_fn(|| env.region().take(1 << order)).collect::<Vec<_>>()).collect();
        let client = connect(&env, address).await;
        client.send(1, "echo", b"payload").await;
        env.sleep(Duration::from_secs(1)).await;
        drop(hoard);
        assert_eq!(client.reply().await.unwrap(), (1, b"payload".to_vec()));
    });
}

#[test]
fn t90_frames_that_wait_leave_memory_to_write() {
    run(13, |env| async move {
        let (toy, server, address) = start(&env, ConnectionLimits::default()).await;
        toy.0.held.set(true);
        let region = env.region();
        // A cache as large as it gets, which the listener may ask to give way.
        while region.free_bytes() > region.bytes() / 8 {
            toy.0.cached.borrow_mut().push(region.take(1 << 20).unwrap());
        }
        let mut clients = Vec::new();
        for n in 0..400 {
            let client = connect(&env, address).await;
            client.0.send_bytes(request(n, "echo", &[1; 60_000])).await.unwrap();
            clients.push(client);
        }
        env.sleep(Duration::from_secs(1)).await;
        assert!(toy.0.cached.borrow().is_empty(), "what is only cached gives way");
        assert!(server.counters().memory_waits.get() > 0);
        let least = region.bytes() / limits::RECEIVE_RESERVE_DIVISOR - limits::RECEIVE_CHUNK_BYTES;
        assert!(region.free_bytes() >= least, "{} bytes are left", region.free_bytes());
        toy.0.held.set(false);
        toy.0.changed.notify();
        for (n, client) in (0..).zip(&clients) {
            assert_eq!(client.reply().await.unwrap().0, n);
        }
        assert_eq!(region.free_bytes(), region.bytes());
    });
}

#[test]
fn t79_garbage_closes_its_connection_and_no_other() {
    run(9, |env| async move {
        let (toy, server, address) = start(&env, ConnectionLimits::default()).await;
        let good = connect(&env, address).await;
        let mut torn = request(1, "echo", b"");
        torn[HEADER_BYTES + 1] ^= 1;
        let mut huge = request(1, "echo", b"");
        huge[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        for bytes in [b"GET / HTTP/1.1\r\nHost: corelane\r\n\r\n".to_vec(), vec![0; 100], vec![0xff; 100], torn, huge] {
            let bad = connect(&env, address).await;
            bad.0.send_bytes(bytes).await.unwrap();
            let took = bad.closed(&env).await;
            assert!(took < Duration::from_secs(1), "{took:?}");
        }
        assert!(toy.0.called.borrow().is_empty());
        good.send(5, "echo", b"x").await;
        assert_eq!(good.reply().await.unwrap().0, 5);
        assert_eq!(server.connection_count(), 1);
    });
}

#[test]
fn connections_over_the_limits_are_refused_and_counted() {
    run(10, |env| async move {
        let few = ConnectionLimits { connections_max: 3, connections_per_address_max: 2, ..ConnectionLimits::default() };
        let (_, server, address) = start(&env, few).await;
        let one = connect(&env, address).await;
        let two = connect(&env, address).await;
        let three = connect(&env, address).await;
        assert!(three.closed(&env).await < Duration::from_secs(1));
        assert_eq!(server.counters().refused.get(), 1);
        one.0.close();
        env.sleep(Duration::from_millis(50)).await;
        let four = connect(&env, address).await;
        four.send(1, "echo", b"").await;
        assert_eq!(four.reply().await.unwrap().0, 1);
        two.send(1, "echo", b"").await;
        assert_eq!(two.reply().await.unwrap().0, 1);
    });
}

#[test]
fn nothing_is_called_while_the_service_is_not_ready() {
    run(11, |env| async move {
        let (toy, server, address) = start(&env, ConnectionLimits::default()).await;
        toy.0.held.set(true);
        let client = connect(&env, address).await;
        client.send(1, "echo", b"").await;
        env.sleep(Duration::from_secs(3600)).await;
        assert!(toy.0.called.borrow().is_empty());
        assert_eq!(server.connection_count(), 1, "time spent under back-pressure is not the client's");
        toy.0.held.set(false);
        toy.0.changed.notify();
        assert_eq!(client.reply().await.unwrap().0, 1);
    });
}

#[test]
fn a_stop_sends_what_is_owed_and_ends() {
    run(12, |env| async move {
        let (toy, server, address) = start(&env, ConnectionLimits::default()).await;
        let client = connect(&env, address).await;
        client.send(1, "later 100", b"").await;
        let parked = connect(&env, address).await;
        parked.send(1, "never", b"").await;
        env.sleep(Duration::from_millis(10)).await;
        let began = env.now();
        server.stop(Duration::from_millis(300)).await;
        let took = env.now().since(began);
        assert!(took >= Duration::from_millis(300) && took < Duration::from_millis(400), "{took:?}");
        assert_eq!(client.reply().await.unwrap().0, 1);
        assert_eq!(client.reply().await, None);
        assert_eq!((toy.0.parked.get(), server.connection_count()), (0, 0));
        assert!(env.connect(address).await.is_err());
    });
}
