//! Converts the rows of a file to lines of JSON.

use crate::footer;
use crate::json_columns::Shape;
use crate::pages::CheckedRowGroup;
use crate::words;
use c_interface::Failure;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::record::{Field, Row};
use serde_json::Value;
use std::fs::File;
use std::sync::Arc;

/// The number of rows decoded at once. Texts are long, so more rows would gain little; memory must
/// hold this number of rows with lists at their limit.
const ROWS_AT_ONCE: usize = 8;

pub struct Rows {
    file: Arc<File>,
    metadata: ParquetMetaData,
    shape: Shape,
    next_group: usize,
    group: Option<ReaderIter>,
    rows_of_group: u64,
    rows_read: u64,
    bytes_before: u64,
    failed: bool,
}

impl Rows {
    pub fn open(file: File) -> Result<Self, Failure> {
        let metadata = footer::read(&file, file.metadata()?.len())?;
        Ok(Rows {
            file: Arc::new(file),
            shape: Shape::of_file(metadata.file_metadata()),
            metadata,
            next_group: 0,
            group: None,
            rows_of_group: 0,
            rows_read: 0,
            bytes_before: 0,
            failed: false,
        })
    }

    /// Returns the file's bytes that the rows so far use: whole row groups and a share of this one.
    pub fn position(&self) -> u64 {
        let Some(group) = self.next_group.checked_sub(1) else {
            return 0;
        };
        let bytes = group_bytes(&self.metadata, group) as u128;
        let share = bytes * u128::from(self.rows_read) / u128::from(self.rows_of_group.max(1));
        self.bytes_before + share as u64
    }

    /// Returns lines of about `wanted` bytes in total; empty at the end.
    pub fn next(&mut self, wanted: usize) -> Result<String, Failure> {
        if self.failed {
            return Err("the file was damaged before this row".into());
        }
        // A panic of the library leaves the reader unusable.
        self.failed = true;
        let text = self.read(wanted)?;
        self.failed = false;
        Ok(text)
    }

    fn read(&mut self, wanted: usize) -> Result<String, Failure> {
        let mut text = String::new();
        while text.len() < wanted {
            let Some(rows) = &mut self.group else {
                if !self.open_group()? {
                    break;
                }
                continue;
            };
            match rows.next() {
                Some(row) => {
                    let row = row.map_err(|e| self.place(&words(&e)))?;
                    self.rows_read += 1;
                    write_row(&row, &self.shape, &mut text);
                    text.push('\n');
                }
                None => self.group = None,
            }
        }
        Ok(text)
    }

    fn place(&self, what: &str) -> Failure {
        format!(
            "row group {}, row {}: {what}",
            self.next_group - 1,
            self.rows_read + 1
        )
        .into()
    }

    /// Opens the next row group; returns false behind the last one. A group of 0 rows has no pages
    /// and is passed over.
    fn open_group(&mut self) -> Result<bool, Failure> {
        if self.next_group == self.metadata.num_row_groups() {
            return Ok(false);
        }
        if let Some(before) = self.next_group.checked_sub(1) {
            self.bytes_before += group_bytes(&self.metadata, before);
        }
        let metadata = self.metadata.row_group(self.next_group).clone();
        let group = CheckedRowGroup::new(self.file.clone(), metadata);
        self.next_group += 1;
        self.rows_read = 0;
        self.rows_of_group = group.metadata().num_rows() as u64;
        if self.rows_of_group == 0 {
            return Ok(true);
        }
        let schema = self.metadata.file_metadata().schema_descr_ptr();
        let rows = TreeBuilder::new()
            .with_batch_size(ROWS_AT_ONCE)
            .as_iter(schema, &group);
        self.group = Some(rows.map_err(|e| self.place(&words(&e)))?);
        Ok(true)
    }
}

fn group_bytes(metadata: &ParquetMetaData, group: usize) -> u64 {
    metadata.row_group(group).compressed_size().max(0) as u64
}

/// Adds the members that are not null: a table has every member in every row.
fn write_members<'a>(
    members: impl Iterator<Item = (String, &'a Field, &'a Shape)>,
    line: &mut String,
) {
    line.push('{');
    let begin = line.len();
    for (name, field, shape) in members {
        let before = line.len();
        if before > begin {
            line.push(',');
        }
        line.push_str(&Value::String(name).to_string());
        line.push(':');
        if !write_value(field, shape, line) {
            line.truncate(before);
        }
    }
    line.push('}');
}

fn write_row(row: &Row, shape: &Shape, line: &mut String) {
    let members = row.get_column_iter();
    write_members(
        members.map(|(name, field)| (name.clone(), field, shape.member(name))),
        line,
    );
}

/// Adds a value; returns false, and adds nothing, for null.
fn write_value(field: &Field, shape: &Shape, line: &mut String) -> bool {
    match (field, shape) {
        (Field::Str(text), Shape::Json) => write_json(text, line),
        (Field::Bytes(bytes), Shape::Json) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => write_json(text, line),
            Err(_) => return false,
        },
        (Field::Group(row), _) => write_row(row, shape, line),
        (Field::ListInternal(list), _) => {
            line.push('[');
            for (i, element) in list.elements().iter().enumerate() {
                if i > 0 {
                    line.push(',');
                }
                if !write_value(element, shape.element(), line) {
                    line.push_str("null");
                }
            }
            line.push(']');
        }
        (Field::MapInternal(map), _) => write_members(
            map.entries()
                .iter()
                .map(|(key, value)| (name_of(key), value, &Shape::Plain)),
            line,
        ),
        _ => match plain_value(field) {
            Some(value) => line.push_str(&value.to_string()),
            None => return false,
        },
    }
    true
}

/// Adds JSON as it stands, so that numbers and the order of members are those of the text. Outside
/// of strings a line feed means nothing, and inside JSON has none. A text that is no JSON becomes a
/// string, so that the reader of the row says what is wrong with it.
fn write_json(text: &str, line: &mut String) {
    if serde_json::from_str::<Value>(text).is_ok() {
        line.push_str(&text.replace(['\n', '\r'], " "));
    } else {
        line.push_str(&Value::String(text.to_owned()).to_string());
    }
}

/// Returns a value that has no parts; None for null.
fn plain_value(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Null => return None,
        Field::Bool(value) => Value::Bool(*value),
        Field::Byte(value) => (*value).into(),
        Field::Short(value) => (*value).into(),
        Field::Int(value) | Field::Date(value) => (*value).into(),
        Field::Long(value) | Field::TimestampMillis(value) | Field::TimestampMicros(value) => {
            (*value).into()
        }
        Field::UByte(value) => (*value).into(),
        Field::UShort(value) => (*value).into(),
        Field::UInt(value) => (*value).into(),
        Field::ULong(value) => (*value).into(),
        // NaN and infinities become null, which a member that is a number refuses.
        Field::Float16(value) => value.to_f64().into(),
        Field::Float(value) => f64::from(*value).into(),
        Field::Double(value) => (*value).into(),
        Field::Decimal(_) => Value::String(field.to_string()),
        Field::Str(text) => Value::String(text.clone()),
        // Old writers do not mark texts as such; other bytes (such as pictures) are left out.
        Field::Bytes(bytes) => Value::String(std::str::from_utf8(bytes.data()).ok()?.to_owned()),
        Field::Group(_) | Field::ListInternal(_) | Field::MapInternal(_) => return None,
    })
}

fn name_of(key: &Field) -> String {
    match key {
        Field::Str(text) => text.clone(),
        other => other.to_string(),
    }
}
