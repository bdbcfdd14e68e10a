//! The programs in the kernel: loads them, registers the algorithm, writes programs, slots and settings, reads events and progress, and runs
//! the iterator that moves flows. Knows no agents.

use std::cell::RefCell;
use std::fmt;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use ccp_vm::Program;
use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder,
};

use crate::NAME;
use crate::layout::{Event, NAME_LEN, Progress, SLOTS_MAX, Settings, Slot, name_bytes};

/// Built by `scripts/bpf` from `bpf/ccp.bpf.c`.
const OBJECT: &[u8] = include_bytes!("../bpf/ccp.bpf.o");
/// The key of the only value of a map.
const ONLY: [u8; 4] = [0; 4];

/// Why the kernel did not do what was asked.
#[derive(Debug)]
pub enum KernelError {
    /// Another algorithm has this name: one of this project's that is up, or a foreign one.
    NameTaken(String),
    /// A name that the kernel does not take: 1 to 15 letters, digits, `_` and `.`.
    BadName(String),
    /// The kernel, or the library that loads programs, refused a step.
    Refused {
        /// What was being done.
        step: &'static str,
        /// What the library says.
        why: libbpf_rs::Error,
    },
    /// The object lacks a part; that is a bug of the build.
    Missing(&'static str),
}

impl fmt::Display for KernelError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken(name) => {
                write!(
                    to,
                    "the kernel has a congestion control `{name}` already: `towpath cc kernel status`, or --name"
                )
            }
            Self::BadName(name) => {
                write!(to, "`{name}` is no name for the kernel: 1 to 15 letters, digits, `_` and `.`")
            }
            Self::Refused { step, why } => write!(to, "{step}: {why}"),
            Self::Missing(part) => write!(to, "the object has no {part}"),
        }
    }
}

impl std::error::Error for KernelError {}

/// Says in which step something was refused.
trait Step<T> {
    fn at(self, step: &'static str) -> Result<T, KernelError>;
}

impl<T> Step<T> for Result<T, libbpf_rs::Error> {
    fn at(self, step: &'static str) -> Result<T, KernelError> {
        self.map_err(|why| KernelError::Refused { step, why })
    }
}

/// The loaded programs. Dropping it unregisters the algorithm; flows that still have it leave by themselves.
pub struct Kernel {
    programs: MapHandle,
    slots: MapHandle,
    progress: MapHandle,
    settings: MapHandle,
    events: MapHandle,
    ring: RingBuffer<'static>,
    heard: Rc<RefCell<Vec<Event>>>,
    iterator: Link,
    _algorithm: Link,
    _object: Object,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Kernel").finish_non_exhaustive()
    }
}

impl Kernel {
    /// Loads the programs and registers their algorithm under `settings.own_name`.
    ///
    /// # Errors
    /// A name that is taken, or the step that the kernel refused.
    pub fn load(settings: &Settings) -> Result<Self, KernelError> {
        let mut object = open(&settings.own_name)?;
        let map = |name| {
            let found = object.maps().find(|map| map.name() == name).ok_or(KernelError::Missing(name))?;
            MapHandle::try_from(&found).at("cannot keep a map")
        };
        let free = map("free_slots")?;
        for slot in 0..SLOTS_MAX {
            free.update(&[], &slot.to_ne_bytes(), MapFlags::ANY).at("cannot fill the queue of slots")?;
        }
        let values = map("settings")?;
        values.update(&ONLY, &settings.encode(), MapFlags::ANY).at("cannot write the settings")?;
        let heard = Rc::new(RefCell::new(Vec::new()));
        let events = map("events")?;
        let ring = listen(&events, Rc::clone(&heard))?;
        let iterator = object.progs_mut().find(|program| program.name() == "move_flows");
        let iterator =
            iterator.ok_or(KernelError::Missing("move_flows"))?.attach().at("cannot attach the iterator")?;
        let (programs, slots, progress) = (map("programs")?, map("slots")?, map("progress")?);
        let algorithm = register(&mut object, &settings.own_name)?;
        Ok(Self {
            programs,
            slots,
            progress,
            settings: values,
            events,
            ring,
            heard,
            iterator,
            _algorithm: algorithm,
            _object: object,
        })
    }

    /// The descriptor that is readable when there are events.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// All events since the last call, in order.
    ///
    /// # Errors
    /// What the library says.
    pub fn events(&self) -> Result<Vec<Event>, KernelError> {
        self.ring.consume().at("cannot read events")?;
        Ok(self.heard.take())
    }

    /// Writes the settings.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set(&self, settings: &Settings) -> Result<(), KernelError> {
        self.settings.update(&ONLY, &settings.encode(), MapFlags::ANY).at("cannot write the settings")
    }

    /// Writes program `number`, which no flow may be running.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_program(&self, number: u32, program: &Program) -> Result<(), KernelError> {
        let image = program.image();
        self.programs.update(&number.to_ne_bytes(), &image, MapFlags::ANY).at("cannot write a program")
    }

    /// Writes how the flow in slot `place` should stand.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_slot(&self, place: u32, slot: &Slot) -> Result<(), KernelError> {
        self.slots.update(&place.to_ne_bytes(), &slot.encode(), MapFlags::LOCK).at("cannot write a slot")
    }

    /// How the flow in slot `place` stands.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn progress(&self, place: u32) -> Result<Option<Progress>, KernelError> {
        let value =
            self.progress.lookup(&place.to_ne_bytes(), MapFlags::ANY).at("cannot read a flow's progress")?;
        Ok(value.and_then(|value| Progress::decode(&value)))
    }

    /// Runs the iterator over all flows of this namespace: moves them here, or takes them back, as the settings say.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn move_flows(&self) -> Result<(), KernelError> {
        let mut iter = Iter::new(&self.iterator).at("cannot begin to look at the host's flows")?;
        let mut nothing = [0; 64];
        while iter.read(&mut nothing).map_err(libbpf_rs::Error::from).at("cannot look at the host's flows")?
            > 0
        {}
        Ok(())
    }
}

/// True of what the kernel takes as the name of an algorithm.
fn is_name(name: &str) -> bool {
    let is_taken = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    (1..NAME_LEN).contains(&name.len()) && name.bytes().all(is_taken)
}

/// Opens the object, names the algorithm, and loads all programs.
fn open(name: &str) -> Result<Object, KernelError> {
    if !is_name(name) {
        return Err(KernelError::BadName(name.to_owned()));
    }
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(OBJECT).at("cannot read the object")?;
    let mut algorithm =
        open.maps_mut().find(|map| map.name() == "algorithm").ok_or(KernelError::Missing("algorithm"))?;
    let value = algorithm.initial_value_mut().ok_or(KernelError::Missing("algorithm's value"))?;
    let (own, wanted) = (name_bytes(NAME), name_bytes(name));
    let at = value.windows(NAME_LEN).position(|window| window == own).ok_or(KernelError::Missing("name"))?;
    value[at..at + NAME_LEN].copy_from_slice(&wanted);
    open.load().at("the kernel refuses the programs")
}

fn register(object: &mut Object, name: &str) -> Result<Link, KernelError> {
    let algorithm = object.maps_mut().find(|map| map.name() == "algorithm");
    let attached = algorithm.ok_or(KernelError::Missing("algorithm"))?.attach_struct_ops();
    attached.map_err(|why| {
        if why.kind() == libbpf_rs::ErrorKind::AlreadyExists {
            KernelError::NameTaken(name.to_owned())
        } else {
            KernelError::Refused { step: "cannot register the algorithm", why }
        }
    })
}

/// Has each record of the ring buffer decoded into `heard`.
fn listen(events: &MapHandle, heard: Rc<RefCell<Vec<Event>>>) -> Result<RingBuffer<'static>, KernelError> {
    let mut builder = RingBufferBuilder::new();
    let keep = move |bytes: &[u8]| {
        heard.borrow_mut().extend(Event::decode(bytes));
        0
    };
    builder.add(events, keep).at("cannot add the ring buffer")?;
    builder.build().at("cannot map the ring buffer")
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn names_are_those_that_the_kernel_takes() {
        assert!(["towpath_ccp", "a", "v1.2", "fifteen_letters"].into_iter().all(is_name));
        assert!(!["", "tp-bench", "two words", "sixteen_letters_", "ü"].into_iter().any(is_name));
    }
}
