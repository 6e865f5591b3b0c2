//! Counts what algorithms do, so that tests can say how that grows with what they are given. Elsewhere it is nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// So many steps are taken.
#[inline(always)]
pub(crate) fn count(_steps: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + _steps);
}

/// How many steps this thread takes while a test does something.
#[cfg(test)]
pub(crate) fn of<R>(what: impl FnOnce() -> R) -> usize {
    let before = STEPS.get();
    what();
    STEPS.get() - before
}
