//! The C interface of include/parquet_c.h. Every function that can fail runs under
//! `c_interface::attempt`, so neither an error nor a panic of the libraries leaves it.

#![allow(clippy::missing_safety_doc)]

mod codec;
mod footer;
mod json_columns;
mod levels;
mod pages;
mod rows;

use c_interface::{answer, OwnedString};
use parquet::errors::ParquetError;
use rows::Rows;
use std::fs::File;
use std::os::fd::FromRawFd;

const LIBRARY: &str = "parquet";

/// Returns an error's text for the user, without the library's own prefix.
fn words(error: &ParquetError) -> String {
    match error {
        ParquetError::General(text) => text.clone(),
        other => other.to_string(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn parqc_string_free(text: OwnedString) {
    text.free();
}

#[no_mangle]
pub unsafe extern "C" fn parqc_open(
    fd: i32,
    reader: *mut *mut Rows,
    error: *mut OwnedString,
) -> i32 {
    let file = File::from_raw_fd(fd);
    answer(reader, error, LIBRARY, || {
        Ok(Box::into_raw(Box::new(Rows::open(file)?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn parqc_free(reader: *mut Rows) {
    if !reader.is_null() {
        drop(Box::from_raw(reader));
    }
}

#[no_mangle]
pub unsafe extern "C" fn parqc_next(
    reader: *mut Rows,
    wanted: usize,
    lines: *mut OwnedString,
    position: *mut u64,
    error: *mut OwnedString,
) -> i32 {
    let rows = &mut *reader;
    answer(lines, error, LIBRARY, || {
        let text = rows.next(wanted)?;
        position.write(rows.position());
        Ok(OwnedString::new(text))
    })
}
