//! What every call of the interface passes through.

pub use c_interface::{Failure, OwnedString, Slice};

const LIBRARY: &str = "tokenizers";

/// Runs `body`; its value, or an error text for a failure or a panic.
pub fn attempt<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    c_interface::attempt(LIBRARY, body)
}

/// Writes the value to `out`, or the message to `error`; 0 or 1 as the interface returns it.
///
/// # Safety
/// `out` and `error` can be written.
pub unsafe fn answer<T>(
    out: *mut T,
    error: *mut OwnedString,
    body: impl FnOnce() -> Result<T, Failure>,
) -> i32 {
    c_interface::answer(out, error, LIBRARY, body)
}
