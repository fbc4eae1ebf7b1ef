//! Reads the footer, which locates all data, and checks it against the file before use.

use crate::words;
use c_interface::Failure;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use std::fs::File;
use std::os::unix::fs::FileExt;

const MAGIC: &[u8; 4] = b"PAR1";
const MAX_FOOTER_BYTES: u64 = 64 << 20;
const MAX_DEPTH: usize = 32;
const MAX_LEAVES: usize = 4096;

/// Reads and checks the footer of a file of `file_bytes` bytes.
pub fn read(file: &File, file_bytes: u64) -> Result<ParquetMetaData, Failure> {
    let cut = "the file is cut off, or no Parquet file: it does not end as one";
    let mut tail = [0; 8];
    if file_bytes < 12 {
        return Err(cut.into());
    }
    file.read_exact_at(&mut tail, file_bytes - 8)?;
    if &tail[4..] == b"PARE" {
        return Err("the file is encrypted".into());
    }
    if &tail[4..] != MAGIC {
        return Err(cut.into());
    }
    let bytes = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if bytes > file_bytes - 12 || bytes > MAX_FOOTER_BYTES {
        return Err(format!("the footer says that it is {bytes} bytes long").into());
    }
    let mut footer = vec![0; bytes as usize];
    file.read_exact_at(&mut footer, file_bytes - 8 - bytes)?;
    check_schema(&schema_children(&footer).ok_or("the footer is damaged")?)?;
    let metadata = ParquetMetaDataReader::decode_metadata(&footer).map_err(|e| {
        format!(
            "the footer is damaged, or of a kind that is not read: {}",
            words(&e)
        )
    })?;
    check_row_groups(&metadata, file_bytes)?;
    Ok(metadata)
}

/// The library builds the schema's tree by recursion, so depth and width are limited. `children`
/// has the number of children of every element, from the root down.
fn check_schema(children: &[i64]) -> Result<(), Failure> {
    let mut open: Vec<i64> = Vec::new();
    let mut leaves = 0;
    for count in children {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if *count > 0 {
            open.push(*count);
        } else {
            leaves += 1;
        }
        if open.len() > MAX_DEPTH || leaves > MAX_LEAVES {
            return Err(format!(
                "the schema is deeper than {MAX_DEPTH} levels or has more than {MAX_LEAVES} columns"
            )
            .into());
        }
    }
    Ok(())
}

/// Returns the offset of a column's first page. Older writers set 0 for "no dictionary".
pub fn first_page(column: &ColumnChunkMetaData) -> i64 {
    let data = column.data_page_offset();
    match column.dictionary_page_offset() {
        Some(dictionary) if dictionary != 0 => dictionary.min(data),
        _ => data,
    }
}

fn check_row_groups(metadata: &ParquetMetaData, file_bytes: u64) -> Result<(), Failure> {
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let damaged = |what: &str| -> Failure { format!("row group {number}: {what}").into() };
        if group.num_rows() < 0 {
            return Err(damaged("a negative number of rows"));
        }
        for column in group.columns() {
            // Writers leave the offsets of a column without values at 0, and no page is read.
            if group.num_rows() == 0 && column.num_values() == 0 {
                continue;
            }
            let begin = first_page(column);
            let end = begin.checked_add(column.compressed_size());
            let inside = begin >= 4
                && column.compressed_size() >= 0
                && end.is_some_and(|end| end as u64 <= file_bytes);
            if !inside {
                return Err(damaged("a column lies outside the file"));
            }
            if column.file_path().is_some() {
                return Err(damaged("a column lies in another file"));
            }
            let flat = column.column_descr().max_rep_level() == 0;
            let values = column.num_values();
            if values < 0
                || (flat && values != group.num_rows())
                || (!flat && values < group.num_rows())
            {
                return Err(damaged("columns have different numbers of rows"));
            }
        }
    }
    Ok(())
}

/// Returns the bytes of the structure (Thrift's compact protocol) at the start of `bytes`; None if
/// it is cut off. Readers allocate for lists and strings before they read them, so a length must
/// not exceed the bytes left; each element takes at least one byte.
pub fn structure_bytes(bytes: &[u8]) -> Option<usize> {
    let mut walk = Walk { bytes, at: 0 };
    walk.structure(0)?;
    Some(walk.at)
}

/// Returns the number of children of each element of a footer's schema.
fn schema_children(footer: &[u8]) -> Option<Vec<i64>> {
    const SCHEMA: i64 = 2; // of FileMetaData
    const CHILDREN: i64 = 5; // of SchemaElement
    let mut children = Vec::new();
    let mut walk = Walk {
        bytes: footer,
        at: 0,
    };
    walk.fields(0, &mut |walk, id, kind| {
        if id != SCHEMA || kind != LIST {
            return walk.value(kind, 0);
        }
        let (count, element) = walk.list_head()?;
        if element != STRUCTURE {
            return None;
        }
        for _ in 0..count {
            let mut own = 0;
            walk.fields(1, &mut |walk, id, kind| {
                if id != CHILDREN || kind != INTEGER_32 {
                    return walk.value(kind, 1);
                }
                let zigzag = walk.varint()?;
                own = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
                Some(())
            })?;
            children.push(own);
        }
        Some(())
    })?;
    Some(children)
}

// Type codes of the compact protocol.
const INTEGER_32: u8 = 5;
const LIST: u8 = 9;
const STRUCTURE: u8 = 12;

type Visit<'v, 'a> = &'v mut dyn FnMut(&mut Walk<'a>, i64, u8) -> Option<()>;

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        let left = (self.bytes.len() - self.at) as u64;
        if bytes > left {
            return None;
        }
        self.at += bytes as usize;
        Some(())
    }

    fn structure(&mut self, depth: usize) -> Option<()> {
        self.fields(depth, &mut |walk, _, kind| walk.value(kind, depth))
    }

    /// Calls `visit` with every field's number and kind; `visit` must skip the value.
    fn fields(&mut self, depth: usize, visit: Visit<'_, 'a>) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut id = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            if head >> 4 == 0 {
                let zigzag = self.varint()?;
                id = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
            } else {
                id += i64::from(head >> 4);
            }
            // The kind of a boolean field is its value.
            if !matches!(head & 0xf, 1 | 2) {
                visit(self, id, head & 0xf)?;
            }
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1..=3 => self.skip(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.skip(8),
            8 => {
                let bytes = self.varint()?;
                self.skip(bytes)
            }
            LIST | 10 => self.list(depth + 1),
            STRUCTURE => self.structure(depth + 1),
            _ => None, // Parquet's metadata has no maps
        }
    }

    fn list(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        let (count, kind) = self.list_head()?;
        for _ in 0..count {
            self.value(kind, depth)?;
        }
        Some(())
    }

    fn list_head(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            short => u64::from(short),
        };
        (count <= (self.bytes.len() - self.at) as u64).then_some((count, head & 0xf))
    }
}
