//! Proofs of a handshake: HMAC-SHA256 (RFC 2104, FIPS 180-4) over both HELLOs, and so over both nonces, versions, epochs and sessions.
//! A proof shows that its sender has the key at the beginning of a channel. It does not protect the bytes that follow.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::hello::Hello;

/// A key of proofs: of a service's secret, or of one session.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What a value is made for. The bytes differ, so that no side can send the other's value back to it.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// The proof in the answer.
    Answer,
    /// The proof in the confirmation.
    Confirm,
}

impl Key {
    /// The key of a service. Without a secret (`None`) every peer without one has the same key: the proofs hold, and prove nothing.
    #[must_use]
    pub fn of_secret(secret: Option<&[u8]>) -> Self {
        let mut mac = Self([0; 32]).mac();
        mac.update(&[u8::from(secret.is_some())]);
        mac.update(secret.unwrap_or_default());
        Self(mac.finalize().into_bytes().into())
    }

    /// The value for that purpose after the two first steps of a handshake.
    #[must_use]
    pub fn prove(&self, purpose: Purpose, ask: &Hello, answer: &Hello) -> [u8; 32] {
        self.over(purpose, ask, answer).finalize().into_bytes().into()
    }

    /// True when `proof` is the value for that purpose; takes the same time for every wrong value.
    #[must_use]
    pub(crate) fn is_proved(&self, purpose: Purpose, ask: &Hello, answer: &Hello, proof: &[u8; 32]) -> bool {
        self.over(purpose, ask, answer).verify_slice(proof).is_ok()
    }

    /// The key of that session's handshakes. Without a secret it proves that its holder knows the session's identifier, 128 random bits.
    #[must_use]
    pub fn of_session(&self, session: u128) -> Self {
        let mut mac = self.mac();
        mac.update(b"towpath channel session");
        mac.update(&session.to_le_bytes());
        Self(mac.finalize().into_bytes().into())
    }

    /// Bytes that only a holder of this key knows, another 32 for each `number`. A service makes its nonces so, from one random seed.
    #[must_use]
    pub(crate) fn random(&self, number: u64) -> [u8; 32] {
        let mut mac = self.mac();
        mac.update(b"nonce");
        mac.update(&number.to_le_bytes());
        mac.finalize().into_bytes().into()
    }

    fn over(&self, purpose: Purpose, ask: &Hello, answer: &Hello) -> Hmac<Sha256> {
        let mut mac = self.mac();
        mac.update(match purpose {
            Purpose::Answer => b"towpath channel answer\0",
            Purpose::Confirm => b"towpath channel confirm",
        });
        mac.update(&ask.proved());
        mac.update(&answer.proved());
        mac
    }

    fn mac(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::Class;

    const ASK: Hello = Hello {
        least: 1,
        most: 1,
        class: Class::Latency,
        is_join: false,
        features: 0,
        largest_frame: 61_440,
        sockets_max: 4,
        epoch: 5,
        session: 6,
        nonce: [1; 16],
    };

    #[test]
    fn proof_depends_on_secret_purpose_and_both_nonces() {
        let answer = Hello { nonce: [2; 16], ..ASK };
        let key = Key::of_secret(Some(b"secret"));
        let proof = key.prove(Purpose::Answer, &ASK, &answer);
        assert!(key.is_proved(Purpose::Answer, &ASK, &answer, &proof));
        assert!(!key.is_proved(Purpose::Confirm, &ASK, &answer, &proof), "an answer sent back");
        assert!(!key.is_proved(Purpose::Answer, &answer, &ASK, &proof), "with the nonces exchanged");
        let replayed = Hello { nonce: [3; 16], ..answer };
        assert!(!key.is_proved(Purpose::Answer, &ASK, &replayed, &proof), "replayed");
        for secret in [None, Some(&b""[..]), Some(&b"Secret"[..])] {
            assert!(!Key::of_secret(secret).is_proved(Purpose::Answer, &ASK, &answer, &proof));
        }
        assert_ne!(Key::of_secret(None), Key::of_secret(Some(b"")));
        assert_ne!(key.of_session(1), key.of_session(2));
        assert_ne!(key.of_session(1), Key::of_secret(None).of_session(1));
    }
}
