//! A handshake and packets without secrets, for two ends in one process: the sizes are those of TLS 1.3 with AES-GCM, and the handshake takes as
//! many round trips. Nothing here protects anything.

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use quinn_proto::crypto::{
    AeadKey, ClientConfig, CryptoError, ExportKeyingMaterialError, HandshakeTokenKey, HeaderKey, HmacKey,
    KeyPair, Keys, PacketKey, ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

/// Bytes that a cipher adds to each packet.
const TAG: usize = 16;

/// All keys of both ends.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl PacketKey for Plain {
    fn encrypt(&self, _packet: u64, buffer: &mut [u8], _header_len: usize) {
        let len = buffer.len();
        buffer[len - TAG..].fill(0);
    }

    fn decrypt(&self, _packet: u64, _header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let len = payload.len().checked_sub(TAG).ok_or(CryptoError)?;
        payload.truncate(len);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

impl HeaderKey for Plain {
    fn decrypt(&self, _at: usize, _packet: &mut [u8]) {}

    fn encrypt(&self, _at: usize, _packet: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        TAG
    }
}

impl HmacKey for Plain {
    fn sign(&self, _data: &[u8], signature: &mut [u8]) {
        // Not the tag of packets: the end of a packet must not look like the token of a stateless reset.
        signature.fill(1);
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, _data: &[u8], _signature: &[u8]) -> Result<(), CryptoError> {
        Ok(())
    }
}

impl HandshakeTokenKey for Plain {
    fn aead_from_hkdf(&self, _random: &[u8]) -> Box<dyn AeadKey> {
        Box::new(Self)
    }
}

impl AeadKey for Plain {
    fn seal(&self, _data: &mut Vec<u8>, _additional: &[u8]) -> Result<(), CryptoError> {
        Ok(())
    }

    fn open<'a>(&self, data: &'a mut [u8], _additional: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        Ok(data)
    }
}

impl ClientConfig for Plain {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        _server: &str,
        own: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(Box::new(Handshake::new(Side::Client, own)))
    }
}

impl ServerConfig for Plain {
    fn initial_keys(&self, _version: u32, _to: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(keys())
    }

    fn retry_tag(&self, _version: u32, _to: &ConnectionId, _packet: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn start_session(self: Arc<Self>, _version: u32, own: &TransportParameters) -> Box<dyn Session> {
        Box::new(Handshake::new(Side::Server, own))
    }
}

fn keys() -> Keys {
    Keys {
        header: KeyPair { local: Box::new(Plain), remote: Box::new(Plain) },
        packet: KeyPair { local: Box::new(Plain), remote: Box::new(Plain) },
    }
}

/// ```text
/// client  --- parameters (Initial) --->  server
///         <-- a byte (Initial), parameters (Handshake) ---
///         --- a byte (Handshake) --->
/// ```
struct Handshake {
    side: Side,
    /// Our parameters; empty once they have been written.
    own: Vec<u8>,
    peer: Option<TransportParameters>,
    /// Messages that were written, and read.
    written: u32,
    read: u32,
}

impl Handshake {
    fn new(side: Side, own: &TransportParameters) -> Self {
        let mut bytes = Vec::new();
        own.write(&mut bytes);
        Self { side, own: bytes, peer: None, written: 0, read: 0 }
    }
}

impl Session for Handshake {
    fn initial_keys(&self, _to: &ConnectionId, _side: Side) -> Keys {
        keys()
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        // The client's second message is of the server's second one.
        self.read < 2
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let has_parameters = match self.side {
            Side::Client => self.read == 1,
            Side::Server => self.read == 0,
        };
        if has_parameters {
            self.peer = Some(TransportParameters::read(self.side, &mut &bytes[..])?);
        }
        self.read += 1;
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.peer)
    }

    fn write_handshake(&mut self, to: &mut Vec<u8>) -> Option<Keys> {
        let step = (self.side, self.written, self.read);
        match step {
            (Side::Client, 0, _) => to.append(&mut self.own),
            // The server's first byte brings the keys of the handshake, and is not answered.
            (Side::Client, 1, 1..) => {}
            (Side::Client, 2, 2..) | (Side::Server, 0, 1..) => to.push(0),
            (Side::Server, 1, 1..) => to.append(&mut self.own),
            _ => return None,
        }
        self.written += 1;
        (step.0 == Side::Server || step.1 > 0).then(keys)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        Some(KeyPair { local: Box::new(Plain), remote: Box::new(Plain) })
    }

    fn is_valid_retry(&self, _to: &ConnectionId, _header: &[u8], _payload: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}
