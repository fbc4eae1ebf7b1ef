//! The C interface of include/yaml_c.h. Every function that can fail runs under
//! `c_interface::answer`, so neither an error nor a panic of the libraries leaves it.

#![allow(clippy::missing_safety_doc)]

mod convert;
mod scalar;

use c_interface::{answer, OwnedString, Slice};
use convert::{to_json, Limits};

#[no_mangle]
pub unsafe extern "C" fn yamlc_string_free(text: OwnedString) {
    text.free();
}

#[no_mangle]
pub unsafe extern "C" fn yamlc_to_json(
    text: Slice,
    limits: Limits,
    json: *mut OwnedString,
    error: *mut OwnedString,
) -> i32 {
    answer(json, error, "YAML", || {
        Ok(OwnedString::new(
            to_json(text.bytes(), &limits)?.to_string(),
        ))
    })
}
