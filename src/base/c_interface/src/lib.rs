//! Shared by all our C interfaces to Rust: panics become error texts, and texts become owned C
//! strings.

use std::cell::RefCell;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::Once;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

thread_local! {
    static PANIC_TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slice {
    data: *const u8,
    size: usize,
}

impl Slice {
    /// # Safety
    /// `data` points to `size` bytes that outlive the returned borrow.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 || self.data.is_null() {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }

    /// # Safety
    /// `data` points to `size` bytes that outlive the returned borrow.
    pub unsafe fn text<'a>(self) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.bytes()).map_err(|e| format!("not UTF-8: {e}").into())
    }
}

impl Slice {
    /// Returns bytes that were checked to be UTF-8 earlier as text.
    ///
    /// # Safety
    /// `data` points to `size` bytes of valid UTF-8 that outlive the returned borrow.
    pub unsafe fn known_text<'a>(self) -> &'a str {
        std::str::from_utf8_unchecked(self.bytes())
    }
}

#[repr(C)]
pub struct OwnedString {
    data: *mut u8,
    size: usize,
}

impl OwnedString {
    pub fn new(text: String) -> Self {
        let bytes = text.into_bytes().into_boxed_slice();
        let size = bytes.len();
        OwnedString {
            data: Box::into_raw(bytes).cast(),
            size,
        }
    }

    /// # Safety
    /// The value came from `new` and is freed once.
    pub unsafe fn free(self) {
        if !self.data.is_null() {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
                self.data, self.size,
            )));
        }
    }
}

/// Keeps panic messages off the terminal and hands them to `attempt`.
fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_hook(Box::new(|info| {
            let text = info
                .payload()
                .downcast_ref::<&str>()
                .map(|s| s.to_string())
                .or_else(|| info.payload().downcast_ref::<String>().cloned())
                .unwrap_or_default();
            PANIC_TEXT.with(|slot| *slot.borrow_mut() = text);
        }));
    });
}

/// Runs `body`. Returns its value, or an error text if it fails or `library` panics.
pub fn attempt<T>(
    library: &str,
    body: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, String> {
    keep_panics_quiet();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(_) => Err(format!(
            "the {library} library gave up: {}",
            PANIC_TEXT.with(|slot| slot.borrow().clone())
        )),
    }
}

/// Writes the value to `out` and returns 0, or writes the message to `error` and returns 1.
///
/// # Safety
/// `out` and `error` can be written.
pub unsafe fn answer<T>(
    out: *mut T,
    error: *mut OwnedString,
    library: &str,
    body: impl FnOnce() -> Result<T, Failure>,
) -> i32 {
    match attempt(library, body) {
        Ok(value) => {
            out.write(value);
            0
        }
        Err(text) => {
            error.write(OwnedString::new(text));
            1
        }
    }
}
