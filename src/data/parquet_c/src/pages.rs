//! Reads the pages of a column, one at a time, and checks each before and after decompression. A
//! damaged or hostile file may claim any size, so all sizes are limited by the constants below.

use crate::codec::decompress;
use crate::footer::{first_page, structure_bytes};
use crate::levels::{check_delta, longest_row};
use crate::words;
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::RowGroupReader;
use parquet::format::{PageHeader, PageType};
use parquet::record::reader::RowIter;
use parquet::schema::types::Type as SchemaType;
use parquet::thrift::TSerializable;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use thrift::protocol::TCompactInputProtocol;

/// Headers hold the least and greatest value of a page, which may be long texts.
const FIRST_HEADER_BYTES: usize = 8 << 10;
const MAX_HEADER_BYTES: usize = 16 << 20;
const MAX_PAGE_BYTES: usize = 1 << 30;
/// The limit is that of other compressed files: no table of texts compresses more than 800 times.
const MAX_EXPANSION: usize = 800;
const ALWAYS_EXPANDED: usize = 64 << 20;
/// The limit of the nested list elements of a row; a line of 16 MiB holds no more.
const MAX_ROW_VALUES: usize = 4 << 20;
const MAX_PAGE_VALUES: u32 = 1 << 28;
/// The limit of all dictionaries of a row group, which stay in memory while its rows are read. An
/// entry takes more memory than its bytes, so that many short entries count too.
const MAX_DICTIONARY_BYTES: usize = 512 << 20;
const DICTIONARY_ENTRY_BYTES: usize = 32;

fn damaged(what: impl std::fmt::Display) -> ParquetError {
    ParquetError::General(what.to_string())
}

/// A row group of a file with a checked footer.
pub struct CheckedRowGroup {
    file: Arc<File>,
    metadata: RowGroupMetaData,
    /// The memory of the dictionaries of all columns so far.
    dictionaries: Arc<AtomicUsize>,
}

impl CheckedRowGroup {
    pub fn new(file: Arc<File>, metadata: RowGroupMetaData) -> Self {
        CheckedRowGroup {
            file,
            metadata,
            dictionaries: Arc::default(),
        }
    }
}

impl RowGroupReader for CheckedRowGroup {
    fn metadata(&self) -> &RowGroupMetaData {
        &self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, i: usize) -> Result<Box<dyn PageReader>> {
        Ok(Box::new(CheckedPages::new(
            self.file.clone(),
            self.metadata.column(i).clone(),
            self.dictionaries.clone(),
        )))
    }

    fn get_column_bloom_filter(&self, _i: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<SchemaType>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

/// The pages of one column of a row group.
struct CheckedPages {
    file: Arc<File>,
    column: ColumnChunkMetaData,
    dictionaries: Arc<AtomicUsize>,
    at: u64,
    end: u64,
    values_left: i64,
    /// The number of values so far of the row that may continue on the next page.
    open_row: usize,
}

impl CheckedPages {
    fn new(file: Arc<File>, column: ColumnChunkMetaData, dictionaries: Arc<AtomicUsize>) -> Self {
        let at = first_page(&column) as u64;
        let end = at + column.compressed_size() as u64;
        let values_left = column.num_values();
        CheckedPages {
            file,
            column,
            dictionaries,
            at,
            end,
            values_left,
            open_row: 0,
        }
    }

    /// Returns the header at the current offset, and its number of bytes.
    fn read_header(&self) -> Result<(PageHeader, u64)> {
        let left = self.end.saturating_sub(self.at);
        let mut wanted = FIRST_HEADER_BYTES;
        loop {
            let bytes = left.min(wanted as u64) as usize;
            let mut buffer = vec![0; bytes];
            self.file.read_exact_at(&mut buffer, self.at)?;
            if let Some(taken) = structure_bytes(&buffer) {
                let mut protocol = TCompactInputProtocol::new(&buffer[..taken]);
                let header = PageHeader::read_from_in_protocol(&mut protocol)
                    .map_err(|e| damaged(format!("the header of a page is damaged: {e}")))?;
                return Ok((header, taken as u64));
            }
            if bytes as u64 == left || wanted >= MAX_HEADER_BYTES {
                return Err(damaged("the header of a page is damaged"));
            }
            wanted *= 16;
        }
    }

    fn read_page(&mut self) -> Result<Option<Page>> {
        if self.values_left <= 0 {
            return Ok(None);
        }
        if self.at >= self.end {
            return Err(damaged("a column ends before its last value"));
        }
        let (header, header_bytes) = self.read_header()?;
        let compressed = usize::try_from(header.compressed_page_size)
            .map_err(|_| damaged("a page of negative size"))?;
        self.at += header_bytes;
        if compressed as u64 > self.end - self.at {
            return Err(damaged("a page is longer than its column"));
        }
        let bytes = usize::try_from(header.uncompressed_page_size)
            .map_err(|_| damaged("a page of negative size"))?;
        if bytes > MAX_PAGE_BYTES || bytes > ALWAYS_EXPANDED + compressed * MAX_EXPANSION {
            return Err(damaged(format!(
                "a page of {compressed} bytes says that it becomes {bytes}, which no text does"
            )));
        }
        let mut packed = vec![0; compressed];
        self.file.read_exact_at(&mut packed, self.at)?;
        self.at += compressed as u64;
        self.make_page(header, packed, bytes)
    }

    /// Decompresses a page. The first `plain` bytes are not compressed.
    fn unpack(
        &self,
        packed: Vec<u8>,
        plain: usize,
        bytes: usize,
        is_packed: bool,
    ) -> Result<Bytes> {
        let compression = self.column.compression();
        if !is_packed || compression == parquet::basic::Compression::UNCOMPRESSED {
            if packed.len() != bytes {
                return Err(damaged("a page is not as long as it says"));
            }
            return Ok(packed.into());
        }
        if plain > bytes || plain > packed.len() {
            return Err(damaged("the levels of a page are longer than the page"));
        }
        let mut unpacked = Vec::with_capacity(bytes);
        unpacked.extend_from_slice(&packed[..plain]);
        if bytes > plain {
            decompress(compression, &packed[plain..], bytes - plain, &mut unpacked)?;
        }
        Ok(unpacked.into())
    }

    fn make_page(
        &mut self,
        header: PageHeader,
        packed: Vec<u8>,
        bytes: usize,
    ) -> Result<Option<Page>> {
        let missing = || damaged("a page lacks the header of its kind");
        let count = |values: i32| -> Result<u32> {
            u32::try_from(values)
                .ok()
                .filter(|values| *values <= MAX_PAGE_VALUES)
                .ok_or_else(|| damaged(format!("a page says that it has {values} values")))
        };
        match header.type_ {
            PageType::DICTIONARY_PAGE => {
                let own = header.dictionary_page_header.ok_or_else(missing)?;
                let num_values = count(own.num_values)?;
                self.count_dictionary(bytes + num_values as usize * DICTIONARY_ENTRY_BYTES)?;
                let buf = self.unpack(packed, 0, bytes, true)?;
                if num_values as usize > buf.len() {
                    return Err(damaged("a dictionary is shorter than it says"));
                }
                Ok(Some(Page::DictionaryPage {
                    buf,
                    num_values,
                    encoding: own.encoding.try_into()?,
                    is_sorted: own.is_sorted.unwrap_or(false),
                }))
            }
            PageType::DATA_PAGE => {
                let own = header.data_page_header.ok_or_else(missing)?;
                let page = Page::DataPage {
                    buf: self.unpack(packed, 0, bytes, true)?,
                    num_values: count(own.num_values)?,
                    encoding: own.encoding.try_into()?,
                    def_level_encoding: own.definition_level_encoding.try_into()?,
                    rep_level_encoding: own.repetition_level_encoding.try_into()?,
                    statistics: None,
                };
                self.check_v1(&page)?;
                Ok(Some(page))
            }
            PageType::DATA_PAGE_V2 => {
                let own = header.data_page_header_v2.ok_or_else(missing)?;
                let def_levels_byte_len = count(own.definition_levels_byte_length)?;
                let rep_levels_byte_len = count(own.repetition_levels_byte_length)?;
                let levels = (def_levels_byte_len + rep_levels_byte_len) as usize;
                let is_packed = own.is_compressed.unwrap_or(true);
                let page = Page::DataPageV2 {
                    buf: self.unpack(packed, levels, bytes, is_packed)?,
                    num_values: count(own.num_values)?,
                    encoding: own.encoding.try_into()?,
                    num_nulls: count(own.num_nulls)?,
                    num_rows: count(own.num_rows)?,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    is_compressed: false,
                    statistics: None,
                };
                if levels > page.buffer().len() {
                    return Err(damaged("the levels of a page are longer than the page"));
                }
                let rows = page.buffer().slice(..rep_levels_byte_len as usize);
                self.check_rows(&rows, page.num_values())?;
                self.check_values(&page.buffer()[levels..], &page)?;
                Ok(Some(page))
            }
            // Pages of other types are not needed.
            _ => self.read_page(),
        }
    }

    fn count_dictionary(&self, bytes: usize) -> Result<()> {
        let before = self.dictionaries.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > MAX_DICTIONARY_BYTES {
            return Err(damaged(format!(
                "the dictionaries of a row group need {} MiB of memory, more than {}; write the \
                 file in smaller row groups, or without dictionaries",
                (before + bytes) >> 20,
                MAX_DICTIONARY_BYTES >> 20
            )));
        }
        Ok(())
    }

    fn check_rows(&mut self, levels: &[u8], values: u32) -> Result<()> {
        let most = self.column.column_descr().max_rep_level();
        if most == 0 {
            return Ok(());
        }
        let bits = (16 - (most as u16).leading_zeros()) as usize;
        let open = &mut self.open_row;
        if longest_row(levels, bits, values as usize, open, MAX_ROW_VALUES)? > MAX_ROW_VALUES {
            return Err(damaged(format!(
                "a row has more than {MAX_ROW_VALUES} values in its lists"
            )));
        }
        Ok(())
    }

    fn check_v1(&mut self, page: &Page) -> Result<()> {
        let Page::DataPage {
            def_level_encoding,
            rep_level_encoding,
            ..
        } = page
        else {
            return Ok(());
        };
        let descriptor = self.column.column_descr_ptr();
        let buffer = page.buffer();
        let mut at = 0;
        let mut levels = |encoding: Encoding| -> Result<Bytes> {
            if encoding != Encoding::RLE {
                return Err(damaged(
                    "levels in the old BIT_PACKED encoding are not read",
                ));
            }
            let size = buffer
                .get(at..at + 4)
                .map(|size| u32::from_le_bytes([size[0], size[1], size[2], size[3]]) as usize);
            match size {
                Some(size) if size <= buffer.len() - at - 4 => {
                    at += 4 + size;
                    Ok(buffer.slice(at - size..at))
                }
                _ => Err(damaged("the levels of a page are longer than the page")),
            }
        };
        if descriptor.max_rep_level() > 0 {
            let rows = levels(*rep_level_encoding)?;
            self.check_rows(&rows, page.num_values())?;
        }
        if descriptor.max_def_level() > 0 {
            levels(*def_level_encoding)?;
        }
        self.check_values(&buffer[at..], page)
    }

    fn check_values(&mut self, values: &[u8], page: &Page) -> Result<()> {
        let count = page.num_values() as usize;
        match page.encoding() {
            Encoding::DELTA_BINARY_PACKED | Encoding::DELTA_LENGTH_BYTE_ARRAY => {
                check_delta(values, count)?;
            }
            Encoding::DELTA_BYTE_ARRAY => {
                let suffixes = check_delta(values, count)?;
                check_delta(&values[suffixes..], count)?;
            }
            _ => {}
        }
        self.values_left -= i64::from(page.num_values());
        if self.values_left < 0 {
            return Err(damaged("a column has more values than it says"));
        }
        Ok(())
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let name = self.column.column_path().string();
        self.read_page()
            .map_err(|e| damaged(format!("column {name}: {}", words(&e))))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        if self.values_left <= 0 {
            return Ok(None);
        }
        Err(damaged("pages are read in turn"))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        Err(damaged("pages are read in turn"))
    }

    // Rows may continue on the next page.
    fn at_record_boundary(&mut self) -> Result<bool> {
        Ok(self.values_left <= 0)
    }
}
