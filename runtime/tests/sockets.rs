//! Sockets over loopback: what net builds on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{any, config, core, filled, spawn_echo, until};
use futures_lite::future::poll_once;
use runtime::uring::{CoreConfig, Spin, run_core};
use runtime::{Connection, Env, Listener, SendPart, SendParts, Sharing, Transport};

#[test]
fn an_echo_over_loopback() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        spawn_echo(&env, listener);
        let client = env.offload(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let mut back = [0; 5];
            for _ in 0..1000 {
                stream.write_all(b"hello").unwrap();
                stream.read_exact(&mut back).unwrap();
                assert_eq!(&back, b"hello");
            }
        });
        client.await;
        let metrics = env.metrics();
        assert!(metrics.completions > 2000, "{metrics:?}");
    });
}

#[test]
fn a_spinning_core_echoes_and_its_timers_fire() {
    let config = CoreConfig { spin: Spin::For(Duration::from_micros(50)), ..config() };
    run_core(config, |env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        spawn_echo(&env, listener);
        env.offload(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let mut back = [0; 5];
            for _ in 0..100 {
                stream.write_all(b"hello").unwrap();
                stream.read_exact(&mut back).unwrap();
            }
        })
        .await;
        env.sleep(Duration::from_millis(5)).await;
    })
    .unwrap();
}

#[test]
fn a_thousand_idle_connections_hold_no_memory() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        spawn_echo(&env, listener);
        let all = env.region().free_bytes();
        let mut clients = env.offload(move || (0..1000).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()).await;
        until(&env, "a thousand connections", || env.metrics().operations > 1000).await;
        assert_eq!(env.region().free_bytes(), all);
        let clients = env
            .offload(move || {
                for client in &mut clients {
                    client.write_all(b"are you there").unwrap();
                    client.read_exact(&mut [0; 13]).unwrap();
                }
                clients
            })
            .await;
        until(&env, "memory's return", || env.region().free_bytes() == all).await;
        drop(clients);
        until(&env, "the connections' end", || env.metrics().operations < 10).await;
    });
}

#[test]
fn close_ends_what_is_under_way() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let mut client = env.offload(move || TcpStream::connect(address).unwrap()).await;
        let (connection, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        let closer = connection.clone();
        let closer_env = env.clone();
        env.spawn(async move {
            closer_env.sleep(Duration::from_millis(5)).await;
            closer.close();
        });
        let (received, chunk) = connection.receive(env.region().take(4096).unwrap(), usize::MAX).await;
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(connection.receive(chunk, usize::MAX).await.0.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert!(connection.readable().await.is_err());
        assert!(connection.send(SendParts::from_iter([SendPart::Owned(b"late"[..].into())])).await.is_err());
        assert_eq!(env.offload(move || client.read(&mut [0; 10]).unwrap()).await, 0);
        listener.close();
        assert!(listener.accept().await.is_err());
    });
}

#[test]
fn a_blocked_send_ends_when_the_connection_is_closed() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let client = env.offload(move || TcpStream::connect(address).unwrap()).await;
        let (connection, _) = listener.accept().await.unwrap();
        let data = filled(&env, 4 << 20, 1).freeze();
        let closer = connection.clone();
        let closer_env = env.clone();
        env.spawn(async move {
            closer_env.sleep(Duration::from_millis(20)).await;
            closer.close();
        });
        // The client reads nothing: this fills every buffer between.
        let parts = SendParts::from_iter((0..4).map(|_| SendPart::Chunk(data.clone())));
        assert!(connection.send(parts).await.is_err());
        drop((data, client));
        until(&env, "memory's return", || env.region().free_bytes() == env.region().bytes()).await;
    });
}

#[test]
fn dropping_the_last_handle_ends_the_stream() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let mut client = env.offload(move || TcpStream::connect(address).unwrap()).await;
        let (connection, _) = listener.accept().await.unwrap();
        let chunk = env.region().take(4096).unwrap();
        assert!(poll_once(connection.receive(chunk, usize::MAX)).await.is_none());
        drop(connection);
        assert_eq!(env.offload(move || client.read(&mut [0; 10]).unwrap()).await, 0);
        until(&env, "memory's return", || env.region().free_bytes() == env.region().bytes()).await;
    });
}

#[test]
fn t90_dropped_connection_to_a_reader_that_reads_nothing_gives_its_memory_back() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let client = env.offload(move || TcpStream::connect(address).unwrap()).await;
        let (connection, _) = listener.accept().await.unwrap();
        let parts = SendParts::from_iter((0..4).map(|_| SendPart::Chunk(filled(&env, 2 << 20, 1).freeze())));
        let mut send = Box::pin(connection.send(parts));
        for _ in 0..5 {
            assert!(poll_once(&mut send).await.is_none());
            env.sleep(Duration::from_millis(2)).await;
        }
        drop(send);
        env.sleep(Duration::from_millis(2)).await;
        assert_eq!(env.region().free_bytes(), env.region().bytes() - (8 << 20), "the send goes on");
        drop(connection);
        until(&env, "memory's return", || env.region().free_bytes() == env.region().bytes()).await;
        drop(client);
    });
}

#[test]
fn t91_bytes_of_a_dropped_receive_are_missed_aloud() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let mut client = env.offload(move || TcpStream::connect(address).unwrap()).await;
        let (connection, _) = listener.accept().await.unwrap();
        // Dropped with nothing received: the stream goes on.
        let receive = connection.receive(env.region().take(4096).unwrap(), usize::MAX);
        assert!(poll_once(receive).await.is_none());
        env.sleep(Duration::from_millis(2)).await;
        client.write_all(b"first").unwrap();
        let (received, chunk) = connection.receive(env.region().take(4096).unwrap(), usize::MAX).await;
        assert_eq!((received.unwrap(), chunk.as_bytes()), (5, &b"first"[..]));
        // Dropped when the kernel has given it bytes that nobody saw.
        let mut receive = Box::pin(connection.receive(env.region().take(4096).unwrap(), usize::MAX));
        assert!(poll_once(&mut receive).await.is_none());
        client.write_all(b"second").unwrap();
        env.sleep(Duration::from_millis(5)).await;
        drop(receive);
        let (received, _) = connection.receive(env.region().take(4096).unwrap(), usize::MAX).await;
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    });
}

#[test]
fn t96_more_connections_than_a_listener_keeps() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let first = env.offload(move || TcpStream::connect(address).unwrap()).await;
        let mut accepted = vec![listener.accept().await.unwrap()];
        let rest = env.offload(move || (0..600).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()).await;
        env.sleep(Duration::from_millis(20)).await;
        while accepted.len() < 601 {
            accepted.push(listener.accept().await.unwrap());
        }
        assert!(env.metrics().cancellations > 0, "accepting was stopped: {:?}", env.metrics());
        drop((first, rest));
    });
}

#[test]
fn large_parts_arrive_whole_and_the_kernel_says_that_loopback_copies() {
    core(|env| async move {
        let listener = env.transport().listen(any(), Sharing::Alone).await.unwrap();
        let address = listener.local_address();
        let client = env.offload(move || TcpStream::connect(address).unwrap()).await;
        let (connection, _) = listener.accept().await.unwrap();
        let data = filled(&env, 1 << 20, 9).freeze();
        let expected: Vec<u8> = [b"head", &data[..], b"tail", &data[100..200_000]].concat();
        let length = expected.len();
        let reader = std::thread::spawn(move || {
            let mut client = client;
            let mut bytes = vec![0; 2 * length];
            client.read_exact(&mut bytes).unwrap();
            bytes
        });
        for _ in 0..2 {
            let parts = SendParts::from_iter([
                SendPart::Owned(b"head"[..].into()),
                SendPart::Chunk(data.clone()),
                SendPart::Owned(b"tail"[..].into()),
                SendPart::Chunk(data.slice(100..200_000)),
            ]);
            connection.send(parts).await.unwrap();
            until(&env, "notifications", || connection.unsent_bytes() == 0).await;
        }
        assert!(reader.join().unwrap() == [&expected[..], &expected[..]].concat());
        let metrics = env.metrics();
        assert!(connection.is_plain_only(), "{metrics:?}");
        assert!(metrics.zero_copy_sends >= 1 && metrics.zero_copy_sends <= 2, "{metrics:?}");
        assert_eq!(metrics.zero_copy_sends, metrics.zero_copy_notifications);
        assert_eq!(metrics.region_held_bytes, 0);
    });
}
