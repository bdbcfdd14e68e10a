//! Objects that a program loads with `RTLD_DEEPBIND` (PHP its extensions) find the C library's symbols before ours. The slots
//! through which they call are pointed at us, before the program's next call about a socket.

use crate::next;
use libc::{c_char, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_PLTRELSZ: u64 = 2;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Relocations of x86-64 that put a function's address into a slot: 64, GLOB_DAT and JUMP_SLOT.
const SLOT_KINDS: [u32; 3] = [1, 6, JUMP_SLOT];
const JUMP_SLOT: u32 = 7;

/// Something has been, or is being, loaded that way.
static DEEP: AtomicBool = AtomicBool::new(false);
/// The next library's `dlopen`, once it is known.
static NEXT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn find() -> usize {
    let found = next::address("dlopen\0");
    NEXT.store(found, Ordering::Relaxed);
    found
}

/// See dlopen(3). The loader looks where the caller's own object says, and knows the caller by where the call returns to: so
/// this notes the flag and jumps.
///
/// # Safety
/// As C's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "test esi, {deepbind}",
        "jz 2f",
        "mov byte ptr [rip + {deep}], 1",
        "2:",
        "mov rax, qword ptr [rip + {next}]",
        "test rax, rax",
        "jnz 3f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "3:",
        "jmp rax",
        deepbind = const libc::RTLD_DEEPBIND,
        deep = sym DEEP,
        next = sym NEXT,
        find = sym find,
    )
}

/// Before a call by which the program gets, or lets go of, a descriptor.
pub fn look() {
    if DEEP.load(Ordering::Relaxed) {
        repoint();
    }
}

/// What the walk over the objects knows.
struct Walk {
    /// Where the C library lies.
    libc: Range<usize>,
    /// Our own object.
    ours: Option<Object>,
}

#[cold]
fn repoint() {
    static ONE: Mutex<()> = Mutex::new(());
    let Ok(_one) = ONE.try_lock() else { return };
    if !DEEP.swap(false, Ordering::AcqRel) {
        return;
    }
    // Waits for another thread in the middle of loading: a question like this one needs the loader's lock.
    next::address("dlopen\0");
    let mut walk = Walk { libc: 0..0, ours: None };
    // SAFETY: the callbacks have the right type, and the walk lives as long as the calls.
    unsafe {
        libc::dl_iterate_phdr(Some(learn), (&raw mut walk).cast());
        libc::dl_iterate_phdr(Some(point), (&raw mut walk).cast());
    }
}

/// An object as the loader describes it.
struct Object {
    base: usize,
    all: Range<usize>,
    /// What was made read-only after it was relocated.
    sealed: Range<usize>,
    dynamic: *const [u64; 2],
}

impl Object {
    /// # Safety
    /// The loader's own description, in a walk over the objects.
    unsafe fn new(info: *const dl_phdr_info) -> Option<Self> {
        // SAFETY: says the caller.
        let (base, headers) = unsafe {
            let headers = std::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
            ((*info).dlpi_addr as usize, headers)
        };
        let range = |header: &libc::Elf64_Phdr| {
            let start = base + header.p_vaddr as usize;
            start..start + header.p_memsz as usize
        };
        let loaded = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD).map(range);
        let found = |kind| headers.iter().find(|h| h.p_type == kind).map(range);
        Some(Self {
            base,
            all: loaded().next()?.start..loaded().next_back()?.end,
            sealed: found(libc::PT_GNU_RELRO).unwrap_or(0..0),
            dynamic: found(libc::PT_DYNAMIC)?.start as *const [u64; 2],
        })
    }

    /// The value of an entry of the dynamic section.
    fn entry(&self, tag: u64) -> Option<usize> {
        let mut at = self.dynamic;
        // SAFETY: the section ends with a 0, and the object stays while the walk lasts.
        unsafe {
            while (*at)[0] != 0 {
                if (*at)[0] == tag {
                    return Some((*at)[1] as usize);
                }
                at = at.add(1);
            }
        }
        None
    }

    /// The same, of which the loader has made an address in most objects.
    fn place(&self, tag: u64) -> Option<usize> {
        self.entry(tag).map(|value| if value < self.base { self.base + value } else { value })
    }

    /// # Safety
    /// The object has a symbol of that number.
    unsafe fn symbol(&self, number: usize) -> Option<(&'static CStr, libc::Elf64_Sym)> {
        let (symbols, names) = (self.place(DT_SYMTAB)?, self.place(DT_STRTAB)?);
        // SAFETY: says the caller; names end with a 0.
        unsafe {
            let symbol = *(symbols as *const libc::Elf64_Sym).add(number);
            Some((CStr::from_ptr((names + symbol.st_name as usize) as *const c_char), symbol))
        }
    }

    /// Where something lies that the object exports, by its GNU hash table.
    fn export(&self, name: &CStr) -> Option<usize> {
        let sum =
            name.to_bytes().iter().fold(5381_u32, |sum, c| sum.wrapping_mul(33).wrapping_add(u32::from(*c)));
        let table = self.place(DT_GNU_HASH)? as *const u32;
        // SAFETY: four words, as many filters of 8 bytes as the third says, the buckets, and a word for each symbol from the
        // second word's on: its name's sum, whose last bit ends a bucket.
        unsafe {
            let [buckets, first, filters] = [0, 1, 2].map(|i| *table.add(i));
            let heads = table.add(4 + 2 * filters as usize);
            let chain = heads.add(buckets as usize);
            let mut number = *heads.add(sum.checked_rem(buckets)? as usize);
            while number >= first {
                let word = *chain.add((number - first) as usize);
                if word | 1 == sum | 1
                    && let Some((found, symbol)) = self.symbol(number as usize)
                    && found == name
                {
                    return Some(self.base + symbol.st_value as usize);
                }
                if word & 1 != 0 {
                    return None;
                }
                number += 1;
            }
        }
        None
    }

    /// Writes a slot. What the loader has made read-only is so again afterwards.
    ///
    /// # Safety
    /// `slot` is a function's slot of the object.
    unsafe fn write(&self, slot: usize, target: usize) {
        // SAFETY: a question about the machine, without pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let whole = |at: usize| at & !(page - 1);
        // The loader leaves what is less than a page at the end as it was.
        let is_sealed = (whole(self.sealed.start)..whole(self.sealed.end)).contains(&slot);
        let protect = |how| {
            // SAFETY: the page is the object's data, which nobody but the loader protects.
            !is_sealed || unsafe { libc::mprotect(whole(slot) as *mut c_void, page, how) } == 0
        };
        if protect(libc::PROT_READ | libc::PROT_WRITE) {
            // SAFETY: an aligned word, which other threads may read now.
            unsafe { (*(slot as *const AtomicUsize)).store(target, Ordering::Release) };
            protect(libc::PROT_READ);
        }
    }
}

/// Finds the C library and ourselves.
unsafe extern "C" fn learn(info: *mut dl_phdr_info, _: size_t, walk: *mut c_void) -> c_int {
    // SAFETY: called by the loader, for the walk above.
    let (object, walk) = unsafe { (Object::new(info), &mut *walk.cast::<Walk>()) };
    if let Some(object) = object {
        if object.all.contains(&(libc::gnu_get_libc_version as *const () as usize)) {
            walk.libc = object.all;
        } else if object.all.contains(&(repoint as *const () as usize)) {
            walk.ours = Some(object);
        }
    }
    0
}

/// Points an object's slots at us that lead to the C library, or to the loader that would find the C library.
unsafe extern "C" fn point(info: *mut dl_phdr_info, _: size_t, walk: *mut c_void) -> c_int {
    // SAFETY: called by the loader, for the walk above.
    let (object, walk) = unsafe { (Object::new(info), &*walk.cast::<Walk>()) };
    let (Some(object), Some(ours)) = (object, &walk.ours) else { return 0 };
    if [walk.libc.start, ours.all.start].contains(&object.all.start) {
        return 0;
    }
    for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        let (Some(table), Some(size)) = (object.place(table), object.entry(size)) else { continue };
        // SAFETY: the object's own tables, with the lengths that it says; offset, information, addend.
        let all =
            unsafe { std::slice::from_raw_parts(table as *const [u64; 3], size / size_of::<[u64; 3]>()) };
        for [offset, what, addend] in all {
            if !SLOT_KINDS.contains(&(*what as u32)) || *addend != 0 {
                continue;
            }
            let slot = object.base + *offset as usize;
            // SAFETY: relocated, so mapped.
            let value = unsafe { (*(slot as *const AtomicUsize)).load(Ordering::Relaxed) };
            let is_late = *what as u32 == JUMP_SLOT && object.all.contains(&value);
            if !walk.libc.contains(&value) && !is_late {
                continue;
            }
            // SAFETY: a relocation's symbol is there.
            let Some((name, symbol)) = (unsafe { object.symbol((*what >> 32) as usize) }) else { continue };
            if symbol.st_shndx == 0
                && let Some(target) = ours.export(name)
            {
                // SAFETY: as the relocation says.
                unsafe { object.write(slot, target) };
            }
        }
    }
    0
}
