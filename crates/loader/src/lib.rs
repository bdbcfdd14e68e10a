//! Objects that the dynamic loader has loaded, and the slots through which they call each other: the function that a slot leads to can
//! be read, and replaced.
//!
//! ```text
//!   code --call--> slot in the data --> function of another object        slot: a relocation with that function's name
//! ```
//! 64-bit ELF as x86-64 and AArch64 have it (System V ABI; "GNU hash" sections); on other machines objects show no slots.

use libc::{c_char, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};

const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Relocations that put a function's address into a slot: 64 (ABS64), GLOB_DAT and JUMP_SLOT.
const SLOT_KINDS: [u32; 3] =
    if cfg!(target_arch = "aarch64") { [257, 1025, JUMP_SLOT] } else { [1, 6, JUMP_SLOT] };
const JUMP_SLOT: u32 = if cfg!(target_arch = "aarch64") { 1026 } else { 7 };
const HAS_SLOTS: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// An object as the loader describes it, while a walk over the objects lasts.
#[derive(Debug)]
pub struct Object {
    base: usize,
    all: Range<usize>,
    /// The address range that the loader made read-only after relocation.
    sealed: Range<usize>,
    dynamic: *const [u64; 2],
}

/// A word in an object's data that holds the address of a function.
#[derive(Debug)]
pub struct Slot<'a> {
    object: &'a Object,
    place: usize,
    kind: u32,
    symbol: usize,
}

/// Calls `look` with every loaded object, the main program first, until it breaks. No object is loaded or unloaded meanwhile; a `look` that
/// loads one would wait for ever.
pub fn each<F: FnMut(&Object) -> ControlFlow<()>>(mut look: F) {
    unsafe extern "C" fn show<F: FnMut(&Object) -> ControlFlow<()>>(
        info: *mut dl_phdr_info,
        _: size_t,
        look: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader calls this with its own description of an object, and the pointer passed below.
        let (object, look) = unsafe { (Object::new(info), &mut *look.cast::<F>()) };
        object.map_or(0, |object| c_int::from(look(&object).is_break()))
    }
    // SAFETY: the callback is of the right type, and `look` lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(show::<F>), (&raw mut look).cast()) };
}

impl Object {
    /// # Safety
    /// `info` is the loader's own description, during a walk over the objects.
    unsafe fn new(info: *const dl_phdr_info) -> Option<Self> {
        // SAFETY: the caller's promise.
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

    /// The address range of the object.
    #[must_use]
    pub const fn range(&self) -> &Range<usize> {
        &self.all
    }

    /// The address of an exported symbol, looked up in the GNU hash table.
    #[must_use]
    pub fn export(&self, name: &CStr) -> Option<usize> {
        let sum =
            name.to_bytes().iter().fold(5381_u32, |sum, c| sum.wrapping_mul(33).wrapping_add(u32::from(*c)));
        let table = self.place(DT_GNU_HASH)? as *const u32;
        // SAFETY: the table has four words, as many filters of 8 bytes as the third word says, the buckets, and one word for each symbol
        // from the number in the second word on: the hash of its name, with the last bit set at the end of a bucket.
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

    /// The slots of the object that lead to functions.
    pub fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        let tables = [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)];
        let tables = tables.into_iter().filter_map(|(table, size)| {
            let (table, size) = (self.place(table)?, self.entry(size)?);
            let n = size / size_of::<[u64; 3]>();
            // SAFETY: the object's own tables, with the lengths that it states; each entry is offset, information, addend.
            Some(unsafe { std::slice::from_raw_parts(table as *const [u64; 3], n) })
        });
        let is_slot =
            |[_, what, addend]: &&[u64; 3]| HAS_SLOTS && SLOT_KINDS.contains(&(*what as u32)) && *addend == 0;
        tables.flatten().filter(is_slot).map(|[offset, what, _]| Slot {
            object: self,
            place: self.base + *offset as usize,
            kind: *what as u32,
            symbol: (*what >> 32) as usize,
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

    /// As [`Self::entry`], for an address: the loader has made it absolute in most objects, but not in all.
    fn place(&self, tag: u64) -> Option<usize> {
        self.entry(tag).map(|value| if value < self.base { self.base + value } else { value })
    }

    /// # Safety
    /// The object has a symbol with this number.
    unsafe fn symbol(&self, number: usize) -> Option<(&CStr, libc::Elf64_Sym)> {
        let (symbols, names) = (self.place(DT_SYMTAB)?, self.place(DT_STRTAB)?);
        // SAFETY: the caller's promise; names end with a 0.
        unsafe {
            let symbol = *(symbols as *const libc::Elf64_Sym).add(number);
            Some((CStr::from_ptr((names + symbol.st_name as usize) as *const c_char), symbol))
        }
    }
}

impl Slot<'_> {
    /// The address that the slot holds.
    #[must_use]
    pub fn target(&self) -> usize {
        // SAFETY: an aligned word, relocated and so mapped, which the loader may write now.
        unsafe { (*(self.place as *const AtomicUsize)).load(Ordering::Relaxed) }
    }

    /// True when the loader will find the function at the first call.
    #[must_use]
    pub fn is_unresolved(&self) -> bool {
        self.kind == JUMP_SLOT && self.object.all.contains(&self.target())
    }

    /// The name of the function, if another object defines it.
    #[must_use]
    pub fn name(&self) -> Option<&CStr> {
        // SAFETY: the symbol of a relocation exists.
        let (name, symbol) = unsafe { self.object.symbol(self.symbol) }?;
        (symbol.st_shndx == 0).then_some(name)
    }

    /// Makes the slot hold `target`. A page that the loader made read-only is made so again afterwards.
    ///
    /// # Safety
    /// `target` is a function of the type of the named one, for as long as the object is loaded.
    pub unsafe fn point(&self, target: usize) {
        // SAFETY: no pointers are passed.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let whole = |at: usize| at & !(page - 1);
        // The loader protects whole pages only, so a part of a page at the end stays writable.
        let sealed = &self.object.sealed;
        let is_sealed = (whole(sealed.start)..whole(sealed.end)).contains(&self.place);
        let protect = |how| {
            // SAFETY: the page is the object's data; only the loader and this function change its protection.
            !is_sealed || unsafe { libc::mprotect(whole(self.place) as *mut c_void, page, how) } == 0
        };
        if protect(libc::PROT_READ | libc::PROT_WRITE) {
            // SAFETY: an aligned word, which other threads may read at the same time.
            unsafe { (*(self.place as *const AtomicUsize)).store(target, Ordering::Release) };
            protect(libc::PROT_READ);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object_at(address: usize, mut look: impl FnMut(&Object)) {
        each(|object| {
            if object.range().contains(&address) {
                look(object);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
    }

    #[test]
    fn exports_are_where_the_linker_found_them() {
        let version = libc::gnu_get_libc_version as *const () as usize;
        let mut found = [Some(0); 2];
        object_at(version, |libc| {
            found = [libc.export(c"gnu_get_libc_version"), libc.export(c"no_such_thing")];
        });
        assert_eq!(found, [Some(version), None]);
    }

    /// # Safety
    /// None: it has the type of `getppid`.
    unsafe extern "C" fn nobody() -> libc::pid_t {
        -7
    }

    #[test]
    fn a_slot_leads_where_it_is_pointed() {
        // SAFETY: it takes no arguments.
        let ask = || unsafe { libc::getppid() };
        let parent = ask();
        let mut n = 0;
        object_at(nobody as *const () as usize, |us| {
            for slot in us.slots().filter(|slot| slot.name() == Some(c"getppid")) {
                let before = slot.target();
                // SAFETY: a function of the same type, which is never unloaded.
                unsafe { slot.point(nobody as *const () as usize) };
                assert!(slot.target() != before && ask() == -7);
                // SAFETY: the address that the slot held before.
                unsafe { slot.point(before) };
                n += 1;
            }
        });
        assert_eq!((n, ask()), (1, parent));
    }
}
