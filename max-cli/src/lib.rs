//! The `max` command as a library.
