//! Limits on the cost of rendering a chat template. Operations ask before they allocate, so a
//! template that multiplies texts or lists gets an error. Without memory, Rust would abort the
//! process.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The longest text, final or intermediate. Rows are at most 16 MiB.
pub const MAX_TEXT: u64 = 64 << 20;
/// The bytes printed in total, including text that blocks and macros capture.
const MAX_PRINTED: u64 = 4 * MAX_TEXT;
/// The memory that a rendering may hold at one time.
const MAX_HELD: u64 = 512 << 20;
/// The longest list that one operation makes.
const MAX_ITEMS: u64 = 4 << 20;
/// Deeper values could exhaust the stack when they are compared, printed or dropped.
pub const MAX_DEPTH: usize = 100;
/// The bytes copied or compared: about a second of work.
const MAX_WORK: u64 = 2_000_000_000;
/// The cost of visiting a value, in bytes copied.
const NODE: u64 = 200;
/// The cost of adding a value to a list, in bytes copied.
const ITEM: u64 = 50;

/// The library's allocator: counts the bytes that each thread holds.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static HELD_BEFORE: Cell<i64> = const { Cell::new(0) };
    static WORK: Cell<u64> = const { Cell::new(0) };
    static PRINTED: Cell<u64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // The thread-local counter may be gone at the end of a thread.
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_add(bytes)));
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        System.alloc_zeroed(layout)
    }
    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        System.dealloc(data, layout);
    }
    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        System.realloc(data, layout, size)
    }
}

fn refuse(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// Starts the budget of a rendering on this thread.
pub fn begin() {
    HELD_BEFORE.set(HELD.get());
    WORK.set(0);
    PRINTED.set(0);
}

/// Asks for work, in bytes copied.
pub fn charge(work: u64) -> Result<(), Error> {
    let sum = WORK.get().saturating_add(work);
    WORK.set(sum);
    if sum > MAX_WORK {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    Ok(())
}

/// Asks for memory that is about to be allocated and written.
pub fn need(bytes: u64) -> Result<(), Error> {
    charge(bytes)?;
    let held = HELD.get().wrapping_sub(HELD_BEFORE.get()).max(0) as u64;
    if held.saturating_add(bytes) > MAX_HELD {
        return Err(refuse(format!(
            "the chat template takes more than {} MiB of memory",
            MAX_HELD >> 20
        )));
    }
    Ok(())
}

/// Asks for a text of `bytes` bytes.
pub fn need_text(bytes: u64) -> Result<(), Error> {
    if bytes > MAX_TEXT {
        return Err(refuse(format!(
            "the chat template makes a text of more than {} MiB",
            MAX_TEXT >> 20
        )));
    }
    need(bytes)
}

/// Asks for a list of `items` items.
pub fn need_items(items: u64) -> Result<(), Error> {
    if items > MAX_ITEMS {
        return Err(refuse(format!(
            "the chat template makes a list of more than {MAX_ITEMS} items"
        )));
    }
    charge(items.saturating_mul(ITEM))?;
    need(items.saturating_mul(std::mem::size_of::<Value>() as u64))
}

/// Asks to print a text of `bytes` bytes.
pub fn print(bytes: u64) -> Result<(), Error> {
    let sum = PRINTED.get().saturating_add(bytes);
    PRINTED.set(sum);
    if sum > MAX_PRINTED {
        return Err(refuse(format!(
            "the chat template prints more than {} MiB",
            MAX_PRINTED >> 20
        )));
    }
    need(2 * bytes)
}

/// The size of a value with all nested values. A shared value counts at each occurrence.
#[derive(Default)]
pub struct Extent {
    pub values: u64,
    /// The bytes of all strings.
    pub text: u64,
}

impl Extent {
    /// An upper bound for the value's length as Python or JSON text with `indent` per level.
    pub fn written(&self, indent: u64) -> u64 {
        let places = self.values.saturating_mul(64 + indent * MAX_DEPTH as u64);
        self.text.saturating_mul(6).saturating_add(places)
    }

    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refuse(format!(
                "a value nests deeper than {MAX_DEPTH} levels"
            )));
        }
        self.values += 1;
        charge(NODE)?;
        match value.kind() {
            ValueKind::String => self.text += value.as_str().map_or(0, str::len) as u64,
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.add(&item, depth + 1)?;
                }
            }
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.add(&key, depth + 1)?;
                    self.add(&value.get_item(&key)?, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the size of the values; refuses values that are too deep.
pub fn measure(values: &[Value]) -> Result<Extent, Error> {
    let mut extent = Extent::default();
    for value in values {
        extent.add(value, 0)?;
    }
    Ok(extent)
}

/// Refuses values that are too deep for one more level.
pub fn check_depth(values: &[Value]) -> Result<(), Error> {
    measure(values).map(|_| ())
}
