//! A hyper server on a ring.
//!
//! ```text
//! towpath up --detach
//! hyper 127.0.0.1:8081 &
//! towpath run -- curl http://127.0.0.1:8081/
//! ```

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::{Request, Response, service::service_fn};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from(format!("{} by a ring\n", request.uri().path()))))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let door = ring_tokio::Door::open(&ring::Service::open(ring::Options::default())?)?;
    let mut listener = door.listen(address.parse()?)?;
    eprintln!("hyper: listens at {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
        // An error is this client's: it has gone, or has sent what is no request.
        tokio::spawn(connection);
    }
}
