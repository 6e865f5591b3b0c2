//! The kernel library: how a kernel is found by its op's name.
//!
//! Kernels linked into the program register themselves and stand in [`KernelLibrary::linked`]. A program that prefers
//! to say what it uses builds a library of its own, and one that loads kernels at run time adds a dynamic library:
//!
//! ```no_run
//! # use max_core as max;
//! use max::kernel::KernelLibrary;
//! // SAFETY: we built it.
//! let library = unsafe { KernelLibrary::linked().with_extension("target/release/libmy_ops.so") }?;
//! # Ok::<(), max::kernel::KernelError>(())
//! ```

pub(super) mod extension;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::abi::{KernelDef, Level};
use super::error::KernelError;
use super::{Kernel, Registration};
use crate::hash_map::HashMap;

/// Kernels by name. Cheap to clone.
#[derive(Clone)]
pub struct KernelLibrary(Arc<Shelf>);

struct Shelf {
    kernels: HashMap<&'static str, Entry>,
    /// Searched for what is not here.
    parent: Option<KernelLibrary>,
    /// The dynamic library that the kernels are of.
    path: Option<PathBuf>,
}

#[derive(Clone, Copy)]
enum Entry {
    One(&'static KernelDef),
    /// Two kernels of one name: an error only for whoever asks for it.
    Two(&'static KernelDef, &'static KernelDef),
}

impl KernelLibrary {
    /// All kernels linked into this program. The index is made once a process.
    pub fn linked() -> KernelLibrary {
        static LINKED: OnceLock<KernelLibrary> = OnceLock::new();
        LINKED
            .get_or_init(|| {
                let mut kernels = HashMap::default();
                for Registration(def) in inventory::iter::<Registration> {
                    insert(&mut kernels, def);
                }
                KernelLibrary(Arc::new(Shelf { kernels, parent: None, path: None }))
            })
            .clone()
    }

    /// A library without any kernel.
    pub fn empty() -> KernelLibrary {
        KernelLibrary(Arc::new(Shelf { kernels: HashMap::default(), parent: None, path: None }))
    }

    /// This library and one more kernel, named by its Rust item.
    ///
    /// # Errors
    /// When another kernel has its name.
    pub fn with<K: Kernel>(self) -> Result<KernelLibrary, KernelError> {
        self.with_kernels([K::def()], None)
    }

    /// This library and the kernels of a dynamic library.
    ///
    /// The library stays loaded until the process ends.
    ///
    /// # Safety
    /// Loading a file runs its code, and so does every launch of its kernels. The file is one that `cargo` built from a crate of yours,
    /// or of somebody whom you trust as you trust the crates that you link, with [`extension!`](crate::extension).
    ///
    /// # Errors
    /// When the file cannot be loaded, is no extension, has a kernel table of another version, layout or target, or one with values
    /// that cannot be; or when it defines a name that this library has.
    pub unsafe fn with_extension(self, path: impl AsRef<Path>) -> Result<KernelLibrary, KernelError> {
        // SAFETY: the caller's promise is the same.
        let kernels = unsafe { extension::load(path.as_ref()) }?;
        self.with_kernels(kernels, Some(path.as_ref().to_path_buf()))
    }

    /// The CPU levels that its kernels are compiled for, of those that this machine has, lowest first.
    pub fn levels(&self) -> Vec<Level> {
        let compiled: BTreeSet<Level> =
            self.iter().flat_map(|def| def.instances.as_slice().iter().map(|instance| instance.level)).collect();
        compiled.into_iter().filter(|level| Level::available().contains(level)).collect()
    }

    /// The dynamic libraries among it, in the order in which they were added.
    pub fn library_paths(&self) -> Vec<PathBuf> {
        let shelves = std::iter::successors(Some(self), |library| library.0.parent.as_ref());
        let mut paths: Vec<PathBuf> = shelves.filter_map(|library| library.0.path.clone()).collect();
        paths.reverse();
        paths
    }

    fn with_kernels(
        self,
        defs: impl IntoIterator<Item = &'static KernelDef>,
        path: Option<PathBuf>,
    ) -> Result<KernelLibrary, KernelError> {
        let mut kernels = HashMap::default();
        for def in defs {
            if let Some(known) = self.find(def.name.as_str()) {
                match known {
                    // The same kernel twice, as when an extension is loaded twice, is one kernel.
                    Entry::One(known) if std::ptr::eq(known, def) => continue,
                    Entry::One(known) | Entry::Two(known, _) => return Err(duplicate(known, def)),
                }
            }
            if let Entry::Two(a, b) = insert(&mut kernels, def) {
                return Err(duplicate(a, b));
            }
        }
        Ok(KernelLibrary(Arc::new(Shelf { kernels, parent: Some(self), path })))
    }

    fn find(&self, name: &str) -> Option<Entry> {
        let mut library = self;
        loop {
            if let Some(entry) = library.0.kernels.get(name) {
                return Some(*entry);
            }
            library = library.0.parent.as_ref()?;
        }
    }

    /// The kernel of that name.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn get(&self, name: &str) -> Result<&'static KernelDef, KernelError> {
        let unknown = || KernelError::Unknown { name: name.to_string(), nearest: self.nearest(name) };
        self.find_kernel(name).unwrap_or_else(|| Err(unknown()))
    }

    /// The kernel of that name, if there is one; an error where there is more than one.
    pub(crate) fn find_kernel(&self, name: &str) -> Option<Result<&'static KernelDef, KernelError>> {
        self.find(name).map(|entry| match entry {
            Entry::One(def) => Ok(def),
            Entry::Two(a, b) => Err(duplicate(a, b)),
        })
    }

    /// The kernel of that name, or the form of one: what is compiled, written to PTX and timed on its own, though ops name kernels
    /// alone. Of `NAME`, these are `NAME_columns` and `NAME_transposed`.
    ///
    /// # Errors
    /// When there is neither.
    #[doc(hidden)]
    pub fn table(&self, name: &str) -> Result<&'static KernelDef, KernelError> {
        let form = || {
            let (kernel, form) = name.rsplit_once('_')?;
            let def = self.find_kernel(kernel)?.ok()?;
            [def.columns, def.transposed].into_iter().flatten().find(|of| of.name.as_str().ends_with(form))
        };
        self.get(name).or_else(|error| form().ok_or(error))
    }

    /// All kernels, each with its forms behind it.
    #[doc(hidden)]
    pub fn tables(&self) -> impl Iterator<Item = &'static KernelDef> {
        self.iter().flat_map(|def| std::iter::once(def).chain(def.columns).chain(def.transposed))
    }

    /// Whether a kernel, or more than one, has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The names most similar to `name`, best first, three at most.
    pub fn nearest(&self, name: &str) -> Vec<&'static str> {
        let mut near: Vec<(usize, &'static str)> = self
            .iter()
            .map(|def| (strsim::damerau_levenshtein(name, def.name.as_str()), def.name.as_str()))
            .filter(|(distance, known)| *distance <= known.len().max(name.len()) / 2)
            .collect();
        near.sort_unstable();
        near.truncate(3);
        near.into_iter().map(|(_, name)| name).collect()
    }

    /// All kernels, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &'static KernelDef> {
        let mut all = Vec::new();
        let mut library = Some(self);
        while let Some(shelf) = library {
            all.extend(shelf.0.kernels.values().map(|entry| match entry {
                Entry::One(def) | Entry::Two(def, _) => *def,
            }));
            library = shelf.0.parent.as_ref();
        }
        all.sort_unstable_by_key(|def| def.name.as_str());
        all.into_iter()
    }
}

impl Default for KernelLibrary {
    fn default() -> Self {
        KernelLibrary::linked()
    }
}

impl std::fmt::Debug for KernelLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|def| def.name.as_str())).finish()
    }
}

fn insert(kernels: &mut HashMap<&'static str, Entry>, def: &'static KernelDef) -> Entry {
    let entry = match kernels.get(def.name.as_str()) {
        Some(Entry::One(known)) => Entry::Two(known, def),
        Some(two) => *two,
        None => Entry::One(def),
    };
    kernels.insert(def.name.as_str(), entry);
    entry
}

fn duplicate(a: &'static KernelDef, b: &'static KernelDef) -> KernelError {
    // Registration has no order: sort, so that the message is always the same.
    let (a, b) = if (a.krate.as_str(), a.line) <= (b.krate.as_str(), b.line) { (a, b) } else { (b, a) };
    let place = |def: &KernelDef| format!("{}:{}", def.file.as_str(), def.line);
    KernelError::Duplicate {
        name: a.name.as_str(),
        crates: [a.krate.as_str(), b.krate.as_str()],
        places: [place(a), place(b)],
    }
}
