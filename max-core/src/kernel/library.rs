//! The kernel library: how a kernel is found by its op's name.
//!
//! Kernels linked into the program register themselves and stand in [`KernelLibrary::linked`]. A program that prefers
//! to say what it uses builds a library of its own, and one that loads kernels at run time adds a dynamic library:
//!
//! ```no_run
//! # use max_core as max;
//! use max::kernel::KernelLibrary;
//! let library = KernelLibrary::linked().with_extension("target/release/libmy_ops.so")?;
//! # Ok::<(), max::kernel::KernelError>(())
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::table::{ExtensionTable, KernelDef, List, TABLE_VERSION};
use super::{Kernel, Registration};

/// Kernels by name. Cheap to clone.
#[derive(Clone)]
pub struct KernelLibrary(Arc<Shelf>);

struct Shelf {
    kernels: HashMap<&'static str, Entry>,
    /// Searched for what is not here.
    parent: Option<KernelLibrary>,
}

#[derive(Clone, Copy)]
enum Entry {
    One(&'static KernelDef),
    /// Two kernels of one name: an error only for whoever asks for it.
    Two(&'static KernelDef, &'static KernelDef),
}

/// A kernel that cannot be found, loaded or run.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No kernel has this name.
    #[error(
        "no kernel is named `{name}`{}; if a crate defines it, link that crate: `use my_ops as _;`",
        nearest_text(nearest)
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The nearest names in the library.
        nearest: Vec<&'static str>,
    },
    /// Two kernels have this name.
    #[error("two kernels are named `{name}`: one in crate `{}` ({}), one in crate `{}` ({}); rename one of them", crates[0], places[0], crates[1], places[1])]
    Duplicate {
        /// The name.
        name: &'static str,
        /// The crates they stand in.
        crates: [&'static str; 2],
        /// Their files and lines.
        places: [String; 2],
    },
    /// A dynamic library could not be opened.
    #[error("the extension {} cannot be loaded: {reason}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A dynamic library that is no extension.
    #[error(
        "{} is not an extension: it has no `max_extension`; put `max::extension!();` in the crate's root and build it as a `cdylib`",
        path.display()
    )]
    NotAnExtension {
        /// The file.
        path: PathBuf,
    },
    /// An extension of another table version.
    #[error(
        "the extension {} has kernel table version {found}, and this program reads version {TABLE_VERSION}; rebuild it with the `max` that this program uses",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A dtype that a kernel was not compiled for.
    #[error("kernel `{kernel}` was not compiled for {generic} = {dtype}\n  kernel: {signature}")]
    Instance {
        /// The kernel.
        kernel: &'static str,
        /// The generic.
        generic: &'static str,
        /// Its binding.
        dtype: crate::dtype::DType,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A generic with two dtypes, or with none.
    #[error("kernel `{kernel}`: {problem}\n  kernel: {signature}")]
    Binding {
        /// The kernel.
        kernel: &'static str,
        /// What does not fit.
        problem: String,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// An environment variable with a value that means nothing.
    #[error("{variable}={value} is not one of {allowed}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}

fn nearest_text(nearest: &[&str]) -> String {
    if nearest.is_empty() { String::new() } else { format!(" (nearest: `{}`)", nearest.join("`, `")) }
}

impl KernelLibrary {
    /// All kernels linked into this program. The index is made once a process.
    pub fn linked() -> KernelLibrary {
        static LINKED: OnceLock<KernelLibrary> = OnceLock::new();
        LINKED
            .get_or_init(|| {
                let mut kernels = HashMap::new();
                for Registration(def) in inventory::iter::<Registration> {
                    insert(&mut kernels, def);
                }
                KernelLibrary(Arc::new(Shelf { kernels, parent: None }))
            })
            .clone()
    }

    /// A library without any kernel.
    pub fn empty() -> KernelLibrary {
        KernelLibrary(Arc::new(Shelf { kernels: HashMap::new(), parent: None }))
    }

    /// This library and one more kernel, named by its Rust item.
    ///
    /// # Errors
    /// When another kernel has its name.
    pub fn with<K: Kernel>(self) -> Result<KernelLibrary, KernelError> {
        self.with_kernels([K::def()])
    }

    /// This library and the kernels of a dynamic library.
    ///
    /// The library stays loaded until the process ends.
    ///
    /// # Errors
    /// When the file cannot be loaded, is no extension or one of another table version, or defines a name that this
    /// library has.
    pub fn with_extension(self, path: impl AsRef<Path>) -> Result<KernelLibrary, KernelError> {
        let table = load_extension(path.as_ref())?;
        self.with_kernels(table.kernels.as_slice().iter().copied())
    }

    fn with_kernels(self, defs: impl IntoIterator<Item = &'static KernelDef>) -> Result<KernelLibrary, KernelError> {
        let mut kernels = HashMap::new();
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
        Ok(KernelLibrary(Arc::new(Shelf { kernels, parent: Some(self) })))
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

    /// The kernels of that name: none, one, or two.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = &'static KernelDef> + use<> {
        let (one, other) = match self.find(name) {
            Some(Entry::One(def)) => (Some(def), None),
            Some(Entry::Two(a, b)) => (Some(a), Some(b)),
            None => (None, None),
        };
        one.into_iter().chain(other)
    }

    /// The kernel of that name.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn get(&self, name: &str) -> Result<&'static KernelDef, KernelError> {
        match self.find(name) {
            Some(Entry::One(def)) => Ok(def),
            Some(Entry::Two(a, b)) => Err(duplicate(a, b)),
            None => Err(KernelError::Unknown { name: name.to_string(), nearest: self.nearest(name) }),
        }
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

fn load_extension(path: &Path) -> Result<&'static ExtensionTable, KernelError> {
    let failed = |e: libloading::Error| KernelError::Load { path: path.to_path_buf(), reason: e.to_string() };
    // The loader would search its own path for a bare name, and report a missing file at length.
    let file =
        path.canonicalize().map_err(|e| KernelError::Load { path: path.to_path_buf(), reason: e.to_string() })?;
    // SAFETY: loading runs the library's initializers; an extension's register its kernels and do nothing else. That
    // a file is an extension is the caller's word, as with any plug-in.
    let library = unsafe { libloading::Library::new(&file) }.map_err(failed)?;
    // SAFETY: `max_extension` has this type in every version of the table.
    let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const ExtensionTable>(b"max_extension\0") }
        .map(|symbol| *symbol)
        .map_err(|_| KernelError::NotAnExtension { path: path.to_path_buf() })?;
    // SAFETY: it takes nothing and returns a table that lives as long as the library.
    let table = unsafe { entry() };
    // SAFETY: the version is the first field in every version of the table.
    let found = unsafe { table.cast::<u32>().read() };
    if found != TABLE_VERSION {
        return Err(KernelError::Version { path: path.to_path_buf(), found });
    }
    // Kernels are used for as long as the process runs.
    std::mem::forget(library);
    // SAFETY: the version matches, so this is our layout, and the library is never unloaded.
    Ok(unsafe { &*table })
}

/// What the `max_extension` function that [`extension!`](crate::extension) defines returns.
#[doc(hidden)]
pub fn extension_table() -> *const ExtensionTable {
    static TABLE: OnceLock<ExtensionTable> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut kernels: Vec<&'static KernelDef> = inventory::iter::<Registration>
            .into_iter()
            .map(|registration| registration.0)
            // Every program has these already.
            .filter(|def| def.krate.as_str() != "max-kernels")
            .collect();
        kernels.sort_unstable_by_key(|def| def.name.as_str());
        ExtensionTable { version: TABLE_VERSION, kernels: List::new(Vec::leak(kernels)) }
    })
}

/// Makes a crate an extension: its kernels can be loaded at run time.
///
/// Write it once in the root of a crate of type `cdylib`; load the resulting file with
/// [`KernelLibrary::with_extension`](crate::kernel::KernelLibrary::with_extension) or as one of the session's
/// `custom_extensions`.
#[macro_export]
macro_rules! extension {
    () => {
        /// The kernels of this library.
        #[unsafe(no_mangle)]
        pub extern "C" fn max_extension() -> *const $crate::kernel::table::ExtensionTable {
            $crate::kernel::extension_table()
        }
    };
}
