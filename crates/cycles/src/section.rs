//! Sections of an application's thread, as the socket library distinguishes them.

/// A section; as a number the index into the account that the service reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Section {
    /// The program itself, outside the library.
    Application = 0,
    /// Receiving: checking, copying, ringing the sender.
    Receive = 1,
    /// Sending: copying, ringing the receiver.
    Send = 2,
    /// `epoll_wait`, `poll`, `select` and blocking calls: checking what is ready, also while the thread yields its processor.
    Wait = 3,
    /// Asleep in the kernel, in one of these calls.
    Asleep = 4,
    /// Writing the eventfd of a sleeping context.
    Wake = 5,
    /// Calls that are passed on to the kernel.
    Kernel = 6,
    /// Making, connecting, accepting and closing sockets, and the requests to the service for it.
    Control = 7,
}

impl Section {
    /// All sections, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Application,
        Self::Receive,
        Self::Send,
        Self::Wait,
        Self::Asleep,
        Self::Wake,
        Self::Kernel,
        Self::Control,
    ];

    /// The section's name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Receive => "receive",
            Self::Send => "send",
            Self::Wait => "wait",
            Self::Asleep => "asleep",
            Self::Wake => "wake",
            Self::Kernel => "kernel",
            Self::Control => "control",
        }
    }
}

const _: () = {
    let mut i = 0;
    while i < Section::ALL.len() {
        assert!(Section::ALL[i] as usize == i);
        i += 1;
    }
};
