//! Extensions: dynamic libraries of kernels.

use std::path::Path;
use std::sync::OnceLock;

use super::super::Registration;
use super::super::abi::check;
use super::super::abi::check::Misfit;
use super::super::abi::layout::{LAYOUT, TARGET, target_name};
use super::super::abi::{ExtensionTable, KernelDef, List, TABLE_VERSION};
use super::super::error::KernelError;

/// The kernels of the library in a file, which stays loaded until the process ends.
///
/// # Safety
/// As for [`KernelLibrary::with_extension`](super::super::KernelLibrary::with_extension).
pub(in crate::kernel) unsafe fn load(path: &Path) -> Result<Vec<&'static KernelDef>, KernelError> {
    let failed = |reason: String| KernelError::Load { path: path.to_path_buf(), reason };
    // The loader would search its own path for a bare name, and report a missing file at length.
    let file = path.canonicalize().map_err(|error| failed(error.to_string()))?;
    // SAFETY: the caller vouches for what the library does when it is loaded.
    let library = unsafe { libloading::Library::new(&file) }.map_err(|error| failed(error.to_string()))?;
    // SAFETY: `max_extension` has this type in every version of the table.
    let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const ExtensionTable>(b"max_extension\0") }
        .map(|symbol| *symbol)
        .map_err(|_| KernelError::NotAnExtension { path: path.to_path_buf() })?;
    // SAFETY: it takes nothing and returns a table that lives as long as the library.
    let table = unsafe { entry() };
    // SAFETY: it is what the function returned, and a library whose kernels are used is never unloaded.
    match unsafe { check::kernels(table) } {
        Ok(kernels) => {
            std::mem::forget(library);
            Ok(kernels)
        }
        Err(Misfit::Version(found)) => Err(KernelError::Version { path: path.to_path_buf(), found }),
        Err(misfit) => Err(KernelError::Table { path: path.to_path_buf(), problem: problem(misfit) }),
    }
}

/// What does not fit, and what to do.
fn problem(misfit: Misfit) -> String {
    match misfit {
        Misfit::Null => {
            "its `max_extension` returns null; put `max::extension!();` in the crate's root instead of a function of your own".into()
        }
        Misfit::Version(found) => format!("its kernel table has version {found}, this program's {TABLE_VERSION}"),
        Misfit::Target(found) => {
            format!("it was compiled for {found}, this program for {}; rebuild it for this target", target_name(&TARGET))
        }
        Misfit::Layout => "its kernel table lies otherwise in memory than this program's, although its version is the same; \
                           rebuild it with the `max` that this program uses"
            .into(),
        Misfit::Value(problem) => {
            format!("its kernel table has a value that cannot be ({problem}); rebuild it with the `max` that this program uses")
        }
    }
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
        let kernels = List::new(Vec::leak(kernels));
        ExtensionTable { version: TABLE_VERSION, layout: LAYOUT, target: TARGET, kernels }
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
        pub extern "C" fn max_extension() -> *const $crate::kernel::abi::ExtensionTable {
            $crate::kernel::extension_table()
        }
    };
}
