// TokenFile: the prepared form of a data file: token ids, one bit per token that says whether its
// target is learned, numbers of the targets (columns), and the ends of documents. Immutable; any
// thread may read.
//
// Integers are little-endian. Checksums of 64 KiB pieces cover all but the header. Each time a
// piece is read, it is checked in memory: a file that is cut or written to while a run uses it
// leads to a DataError, never to a signal or other tokens, as with a mapping. Offsets are from the
// start of the file:
//     0  magic "LNGSHTOK"              72  offset of ids: int32 each
//     8  u32 version (3 - 5), u32 0    80  offset of the mask: bit t of byte t / 8
//    16  vocabulary size of the model  88  offset of document ends: u64 each, in tokens
//    24  fingerprint of the tokenizer  96  offset of other targets: {u64 token, i32 target, u32 0}
//    32  key of the cache entry       104  offset of the report, JSON
//    40  tokens                       112  offset of the checksums: u64 for each piece from 4096
//    48  trained tokens               120  bytes of the file
//    56  documents                    128  tokens of the longest document
//    64  other targets                136  checksum of the header up to here
// A file with columns has version 4, and its header continues:
//   136  columns: bit c is set for the column with the id c of base/columns.h
//   144  offset of the columns, one behind the other: a float32 for each token, of its target
//   152  checksum of the header up to here
// A file with columns of a teacher has version 5:
//   152  the width of these columns: the float32 numbers of each token
//   160  checksum of the header up to here
// The header has 4096 bytes; sections are aligned to 64. A target is the next token unless the
// other targets list it (labels of token rows may be any tokens). The highest bit of a document's
// end is set if the document comes from the same row as the one before, the second highest bit if
// it is an answer that people rejected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mutex.h"
#include "data/tokens/dataset.h"

namespace longshore {

inline constexpr Bytes kTokenHeaderBytes = 4096;
inline constexpr Bytes kTokenPieceBytes = 64 * kKiB;
inline constexpr uint32_t kTokenFileVersion = 3;
inline constexpr uint32_t kTokenColumnsVersion = 4;
inline constexpr uint32_t kTokenTeacherVersion = 5;
inline constexpr uint64_t kRowGoesOn = uint64_t{1} << 63;
inline constexpr uint64_t kUndesirable = uint64_t{1} << 62;

// TokenFileHeader: the numbers of the header from offset 16 on, in order.
struct TokenFileHeader {
  uint64_t vocabulary_size = 0;
  uint64_t tokenizer_fingerprint = 0;
  uint64_t key = 0;
  uint64_t tokens = 0;
  uint64_t trained_tokens = 0;
  uint64_t documents = 0;
  uint64_t other_targets = 0;
  uint64_t ids_offset = 0;
  uint64_t mask_offset = 0;
  uint64_t ends_offset = 0;
  uint64_t others_offset = 0;
  uint64_t report_offset = 0;
  uint64_t checksums_offset = 0;
  uint64_t file_bytes = 0;
  uint64_t longest_document = 0;
  uint64_t columns = 0;  // in files with columns
  uint64_t columns_offset = 0;
  uint64_t teacher_tokens = 0;  // in files with columns of a teacher

  bool has_column(size_t column) const { return (columns >> column & 1) != 0; }
  // Returns the numbers that each token has in a column.
  uint64_t width_of(size_t column) const {
    return has_column(column) ? width_of_column(column, teacher_tokens) : 0;
  }
  uint32_t version() const {
    if (columns == 0) return kTokenFileVersion;
    return has_column(kTeacherIdColumn) ? kTokenTeacherVersion : kTokenColumnsVersion;
  }
  bool operator==(const TokenFileHeader&) const = default;
};

// Returns the bytes of the header's numbers, of which earlier versions lack the last ones.
constexpr size_t number_bytes(uint32_t version) {
  if (version == kTokenFileVersion) return offsetof(TokenFileHeader, columns);
  return version == kTokenColumnsVersion ? offsetof(TokenFileHeader, teacher_tokens)
                                         : sizeof(TokenFileHeader);
}

// OtherTarget: a target that differs from the next token.
struct OtherTarget {
  uint64_t token = 0;
  TokenId target = 0;
  uint32_t zero = 0;
};

class TokenFile : public Dataset {
 public:
  // Throws DataError if the file is no token file, damaged or cut off. `use` is a descriptor of the
  // file that marks it as in use (data/prepare/prepared_cache.h); without one the path is opened.
  explicit TokenFile(const std::string& path, UniqueFd use = {});

  int64_t document_count() const override { return static_cast<int64_t>(header_.documents); }
  int64_t document_tokens(int64_t document) const override;
  int64_t document_trained_tokens(int64_t document) const override;
  // Throws DataError for a token or target that the vocabulary does not have.
  void append_document(int64_t document, std::vector<int64_t>& tokens,
                       std::vector<int64_t>& targets) const override;
  bool row_goes_on(int64_t document) const override;
  bool is_desirable(int64_t document) const override;
  bool has_column(ColumnId column) const override { return header_.has_column(column); }
  size_t width_of(ColumnId column) const override { return header_.width_of(column); }
  std::vector<float> column_of(int64_t document, ColumnId column) const override;
  uint64_t fingerprint() const override { return fingerprint_; }

  const TokenFileHeader& header() const { return header_; }
  // Returns the report on the rows from the time when the file was made.
  std::string report() const;
  // Returns the ids of a document.
  std::vector<TokenId> ids(int64_t document) const;
  // Checks every piece. A DataError names the first damaged one.
  void verify() const;

 private:
  // Shared, because a reader may still use a piece that another thread has dropped from the cache.
  using Piece = std::shared_ptr<const std::vector<std::byte>>;
  // A recently read piece.
  struct Kept {
    uint64_t number = 0;
    uint64_t used = 0;  // grows with every use of a piece
    Piece bytes;
  };

  [[noreturn]] void refuse(const std::string& what) const;
  void read_header();
  void check_layout() const;
  // Returns the numbers that each token has in the first columns.
  uint64_t column_numbers(size_t columns) const;
  void read_index();
  template <typename T>
  std::span<const T> in_index(uint64_t offset, uint64_t count) const;
  void read_file(uint64_t offset, std::span<std::byte> out) const;
  void read_checked(uint64_t offset, std::span<std::byte> out) const;
  Piece piece(uint64_t number) const;
  Piece read_piece(uint64_t number) const;
  uint64_t begin_of(int64_t document) const;
  uint64_t end_of(int64_t document) const {
    return ends_[static_cast<size_t>(document)] & ~(kRowGoesOn | kUndesirable);
  }
  std::vector<uint8_t> mask_of(uint64_t begin, uint64_t end) const;
  void check_id(int64_t document, TokenId id) const;

  UniqueFd fd_;
  TokenFileHeader header_;
  std::vector<uint64_t> checksums_;  // of the pieces
  std::vector<std::byte> index_;     // the file's bytes from the document ends to the checksums
  std::span<const uint64_t> ends_;
  std::span<const OtherTarget> others_;
  uint64_t fingerprint_ = 0;
  mutable Mutex keeping_;
  mutable std::vector<Kept> kept_ LONGSHORE_GUARDED_BY(keeping_);
  mutable uint64_t uses_ LONGSHORE_GUARDED_BY(keeping_) = 0;
};

}  // namespace longshore
