//! What one rendering of a chat template may cost. Operations ask before they make anything, so
//! that a template that multiplies texts or lists ends in an error and not in an abort: where
//! memory runs out, Rust ends the process.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The longest text, as a result or in between. Rows are at most 16 MiB.
pub const MAX_TEXT: u64 = 64 << 20;
/// All that is printed, what blocks and macros capture on the way included.
const MAX_PRINTED: u64 = 4 * MAX_TEXT;
/// Memory that a rendering holds at one time.
const MAX_HELD: u64 = 512 << 20;
/// The longest list that one operation makes.
const MAX_ITEMS: u64 = 4 << 20;
/// Deeper values could exhaust the stack when they are compared, written or dropped.
pub const MAX_DEPTH: usize = 100;
/// Bytes copied or compared: about a second.
const MAX_WORK: u64 = 2_000_000_000;
/// What it costs to look at a value, in bytes copied.
const NODE: u64 = 200;
/// What it costs to put a value into a list.
const ITEM: u64 = 50;

/// Counts the bytes that each thread holds of what this library allocates.
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
    // At the end of a thread there may be nothing to count with any more.
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

/// A rendering begins on this thread.
pub fn begin() {
    HELD_BEFORE.set(HELD.get());
    WORK.set(0);
    PRINTED.set(0);
}

/// Work that is about to be done.
pub fn charge(work: u64) -> Result<(), Error> {
    let sum = WORK.get().saturating_add(work);
    WORK.set(sum);
    if sum > MAX_WORK {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    Ok(())
}

/// Memory that is about to be taken, and written.
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

/// A text that is about to be made.
pub fn need_text(bytes: u64) -> Result<(), Error> {
    if bytes > MAX_TEXT {
        return Err(refuse(format!(
            "the chat template makes a text of more than {} MiB",
            MAX_TEXT >> 20
        )));
    }
    need(bytes)
}

/// A list that is about to be made.
pub fn need_items(items: u64) -> Result<(), Error> {
    if items > MAX_ITEMS {
        return Err(refuse(format!(
            "the chat template makes a list of more than {MAX_ITEMS} items"
        )));
    }
    charge(items.saturating_mul(ITEM))?;
    need(items.saturating_mul(std::mem::size_of::<Value>() as u64))
}

/// A text that is about to be printed.
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

/// How large a value is, with everything in it; what occurs twice counts twice.
#[derive(Default)]
pub struct Extent {
    pub values: u64,
    /// Of its strings.
    pub text: u64,
}

impl Extent {
    /// At least the length of the value as Python or JSON write it, `indent` before each line.
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

/// Refuses values that are too deep, too.
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
