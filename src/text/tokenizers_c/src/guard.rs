//! Wraps every call of the C interface.

pub use c_interface::{Failure, OwnedString, Slice};

const LIBRARY: &str = "tokenizers";

/// Runs `body` and returns its value, or the text of its error or panic.
pub fn attempt<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    c_interface::attempt(LIBRARY, body)
}

/// Writes the value to `out` and returns 0, or writes the message to `error` and returns 1.
///
/// # Safety
/// `out` and `error` must be writable.
pub unsafe fn answer<T>(
    out: *mut T,
    error: *mut OwnedString,
    body: impl FnOnce() -> Result<T, Failure>,
) -> i32 {
    c_interface::answer(out, error, LIBRARY, body)
}
