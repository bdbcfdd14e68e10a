//! A hyper server on a ring, and streams between two doors.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../ring/tests/common/mod.rs"]
mod common;

use common::{output, service};
use ring::{Options, Service};
use ring_tokio::Door;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn hyper_serves_an_ordinary_client_with_pipelined_requests() {
    let place = service();
    let server = place.example("hyper");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ring/tests/c/says.c");
    let client = place.compile_at(&source);
    let port = server.address.port().to_string();
    let request =
        "GET /one HTTP/1.1\r\nHost: x\r\n\r\nGET /two HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let said = output(place.ordinary(client).args([&port, request]));
    assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 2, "{said}");
    assert!(said.contains("/one by a ring\n") && said.ends_with("/two by a ring\n"), "{said}");
}

/// More bytes than any ring holds go both ways at once, and the end is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_carry_all_bytes_both_ways_and_their_end() {
    const LEN: usize = 3 << 20;
    let place = service();
    let options = Options { control: Some(place.control.clone()), ..Options::default() };
    let service = Service::open(options).unwrap();
    let (here, there) = (Door::open(&service).unwrap(), Door::open(&service).unwrap());
    let mut listener = there.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let echo = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream);
        let n = tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.shutdown().await.unwrap();
        n
    });
    let sent: Vec<u8> = (0..LEN).map(|at| (at * 7 + at / 251) as u8).collect();
    let (mut read, mut write) = tokio::io::split(here.connect(address).await.unwrap());
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut got = Vec::new();
    read.read_to_end(&mut got).await.unwrap();
    writer.await.unwrap();
    assert!(got == expected);
    assert_eq!(echo.await.unwrap(), LEN as u64);
    let refused = here.connect(address).await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported, "{refused}");
}
