#include "data/tokens/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"

namespace longshore {
namespace {

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(TokenFileHeader) == 18 * sizeof(uint64_t));
static_assert(sizeof(OtherTarget) == 16);

constexpr size_t kNumbersOffset = 16;

// The pieces that a file keeps in memory: 4 million tokens, so that small data is read once.
constexpr size_t kKeptPieces = 256;

uint64_t pieces_of(uint64_t body_bytes) {
  return (body_bytes + kTokenPieceBytes - 1) / kTokenPieceBytes;
}

// Returns the bit of a token in mask bytes that begin with that of token `begin`.
bool is_set(const std::vector<uint8_t>& mask, uint64_t begin, uint64_t token) {
  return (mask[token / 8 - begin / 8] >> (token % 8) & 1) != 0;
}

}  // namespace

TokenFile::TokenFile(const std::string& path, UniqueFd use)
    : fd_(use.valid() ? std::move(use) : open_for_reading(path)) {
  read_header();
  check_layout();
  checksums_.resize(pieces_of(header_.checksums_offset - kTokenHeaderBytes));
  read_file(header_.checksums_offset, std::as_writable_bytes(std::span(checksums_)));
  fingerprint_ = hash64(std::as_bytes(std::span<const uint64_t>(checksums_)));
  read_index();
}

void TokenFile::refuse(const std::string& what) const {
  throw DataError(fd_.path() + ": " + what + "; delete the file, it will be prepared again");
}

void TokenFile::read_header() {
  const auto bytes = static_cast<uint64_t>(file_bytes(fd_));
  std::array<std::byte, kTokenHeaderBytes> header;
  if (bytes < header.size()) refuse("is no file of prepared tokens");
  read_file(0, header);
  if (std::memcmp(header.data(), "LNGSHTOK", 8) != 0) refuse("is no file of prepared tokens");
  uint32_t version = 0;
  std::memcpy(&version, header.data() + 8, sizeof version);
  if (version < kTokenFileVersion || version > kTokenTeacherVersion) {
    refuse("has version " + std::to_string(version) + ", expected " +
           std::to_string(kTokenFileVersion) + " to " + std::to_string(kTokenTeacherVersion));
  }
  const size_t numbers = number_bytes(version);
  uint64_t checksum = 0;
  std::memcpy(&checksum, header.data() + kNumbersOffset + numbers, sizeof checksum);
  if (checksum != hash64(std::span<const std::byte>(header).first(kNumbersOffset + numbers))) {
    refuse("its header is damaged");
  }
  std::memcpy(&header_, header.data() + kNumbersOffset, numbers);
  if (header_.file_bytes != bytes) {
    refuse("is " + std::to_string(bytes) + " bytes long, expected " +
           std::to_string(header_.file_bytes));
  }
}

uint64_t TokenFile::column_numbers(size_t columns) const {
  uint64_t sum = 0;
  for (size_t c = 0; c < columns; ++c) sum += header_.width_of(c);
  return sum;
}

// Sections follow each other in the file. Sizes cannot overflow, since each is compared with the
// file's size before it is multiplied.
void TokenFile::check_layout() const {
  const TokenFileHeader& h = header_;
  const uint64_t bytes = h.file_bytes;
  const bool counts = h.tokens <= bytes && h.documents <= bytes && h.other_targets <= bytes;
  const bool aligned = h.ids_offset % 64 == 0 && h.mask_offset % 64 == 0 &&
                       h.ends_offset % 64 == 0 && h.others_offset % 64 == 0 &&
                       h.checksums_offset % 64 == 0;
  const uint64_t width = column_numbers(kTokenColumns);
  const bool columns =
      h.columns == 0 || (h.columns < uint64_t{1} << kTokenColumns && counts &&
                         h.columns_offset % 64 == 0 && h.teacher_tokens <= kMostTeacherTokens &&
                         width > 0 && h.has_column(kTeacherIdColumn) == (h.teacher_tokens > 0) &&
                         h.has_column(kTeacherIdColumn) == h.has_column(kTeacherLogpColumn) &&
                         h.tokens <= bytes / (4 * width) && h.columns_offset <= bytes &&
                         h.mask_offset + (h.tokens + 7) / 8 <= h.columns_offset &&
                         h.columns_offset + 4 * h.tokens * width <= h.ends_offset);
  const bool ordered =
      counts && aligned && columns && h.ids_offset == static_cast<uint64_t>(kTokenHeaderBytes) &&
      h.mask_offset <= bytes && h.ends_offset <= bytes && h.others_offset <= bytes &&
      h.report_offset <= bytes && h.checksums_offset <= bytes &&
      h.ids_offset + 4 * h.tokens <= h.mask_offset &&
      h.mask_offset + (h.tokens + 7) / 8 <= h.ends_offset &&
      h.ends_offset + 8 * h.documents <= h.others_offset &&
      h.others_offset + 16 * h.other_targets <= h.report_offset &&
      h.report_offset <= h.checksums_offset &&
      h.checksums_offset + 8 * pieces_of(h.checksums_offset - kTokenHeaderBytes) == bytes;
  if (!ordered) {
    throw DataError(fd_.path() + ": its sections do not lie in the file; delete it");
  }
}

// The index stays in memory as it was checked here.
void TokenFile::read_index() {
  index_.resize(header_.checksums_offset - header_.ends_offset);
  read_checked(header_.ends_offset, index_);
  ends_ = in_index<uint64_t>(header_.ends_offset, header_.documents);
  others_ = in_index<OtherTarget>(header_.others_offset, header_.other_targets);
  for (int64_t d = 0; d < document_count(); ++d) {
    const bool right = end_of(d) > begin_of(d) && end_of(d) <= header_.tokens;
    if (!right || (d == 0 && row_goes_on(d))) refuse("document " + std::to_string(d) + " is wrong");
  }
  // A search for a document's targets needs them in the order of their tokens.
  for (size_t i = 0; i < others_.size(); ++i) {
    const bool right =
        others_[i].token < header_.tokens && (i == 0 || others_[i - 1].token < others_[i].token);
    if (!right) refuse("target " + std::to_string(i) + " of those that are no next token is wrong");
  }
}

template <typename T>
std::span<const T> TokenFile::in_index(uint64_t offset, uint64_t count) const {
  return {reinterpret_cast<const T*>(index_.data() + (offset - header_.ends_offset)), count};
}

// Reads bytes of the file as they are.
void TokenFile::read_file(uint64_t offset, std::span<std::byte> out) const {
  try {
    read_exact_at(fd_, static_cast<Bytes>(offset), out);
  } catch (const IoError&) {
    if (static_cast<uint64_t>(file_bytes(fd_)) >= offset + out.size()) throw;
    refuse("was cut to " + std::to_string(file_bytes(fd_)) + " bytes");
  }
}

// Reads bytes between the header and the checksums from checked pieces.
void TokenFile::read_checked(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const uint64_t in_body = offset - kTokenHeaderBytes;
    const uint64_t number = in_body / kTokenPieceBytes, at = in_body % kTokenPieceBytes;
    const Piece bytes = piece(number);
    LONGSHORE_CHECK(at < bytes->size()) << fd_.path() << ": " << offset;
    const size_t count = std::min(out.size(), bytes->size() - static_cast<size_t>(at));
    std::memcpy(out.data(), bytes->data() + at, count);
    out = out.subspan(count);
    offset += count;
  }
}

TokenFile::Piece TokenFile::piece(uint64_t number) const {
  {
    const MutexLock lock(keeping_);
    for (Kept& kept : kept_) {
      if (kept.number != number) continue;
      kept.used = ++uses_;
      return kept.bytes;
    }
  }
  Piece bytes = read_piece(number);
  const MutexLock lock(keeping_);
  const Kept kept{.number = number, .used = ++uses_, .bytes = bytes};
  if (kept_.size() < kKeptPieces) {
    kept_.push_back(kept);
  } else {
    *std::ranges::min_element(kept_, {}, &Kept::used) = kept;
  }
  return bytes;
}

TokenFile::Piece TokenFile::read_piece(uint64_t number) const {
  const uint64_t offset = kTokenHeaderBytes + number * kTokenPieceBytes;
  const auto count =
      std::min(static_cast<uint64_t>(kTokenPieceBytes), header_.checksums_offset - offset);
  std::vector<std::byte> bytes(count);
  read_file(offset, bytes);
  if (hash64(bytes) != checksums_.at(number)) {
    refuse("damaged in the " + std::to_string(count) + " bytes from offset " +
           std::to_string(offset));
  }
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

void TokenFile::verify() const {
  for (size_t number = 0; number < checksums_.size(); ++number) read_piece(number);
}

uint64_t TokenFile::begin_of(int64_t document) const {
  LONGSHORE_CHECK(document >= 0 && document < document_count())
      << document << " of " << document_count();
  return document == 0 ? 0 : end_of(document - 1);
}

bool TokenFile::row_goes_on(int64_t document) const {
  return (ends_[static_cast<size_t>(document)] & kRowGoesOn) != 0;
}

bool TokenFile::is_desirable(int64_t document) const {
  return (ends_[static_cast<size_t>(document)] & kUndesirable) == 0;
}

int64_t TokenFile::document_tokens(int64_t document) const {
  const uint64_t begin = begin_of(document);
  return static_cast<int64_t>(end_of(document) - begin);
}

std::vector<TokenId> TokenFile::ids(int64_t document) const {
  const uint64_t begin = begin_of(document), end = end_of(document);
  std::vector<TokenId> ids(end - begin);
  read_checked(header_.ids_offset + 4 * begin, std::as_writable_bytes(std::span(ids)));
  return ids;
}

// Returns the bytes of the mask that hold tokens [begin, end).
std::vector<uint8_t> TokenFile::mask_of(uint64_t begin, uint64_t end) const {
  std::vector<uint8_t> mask((end + 7) / 8 - begin / 8);
  read_checked(header_.mask_offset + begin / 8, std::as_writable_bytes(std::span(mask)));
  return mask;
}

std::vector<float> TokenFile::column_of(int64_t document, ColumnId column) const {
  LONGSHORE_CHECK(has_column(column)) << fd_.path() << ": column " << static_cast<int>(column);
  const uint64_t begin = begin_of(document), end = end_of(document);
  const uint64_t width = header_.width_of(column);
  const uint64_t first = column_numbers(column) * header_.tokens + width * begin;
  std::vector<float> values(width * (end - begin));
  read_checked(header_.columns_offset + 4 * first, std::as_writable_bytes(std::span(values)));
  return values;
}

int64_t TokenFile::document_trained_tokens(int64_t document) const {
  const uint64_t begin = begin_of(document), end = end_of(document);
  const std::vector<uint8_t> mask = mask_of(begin, end);
  int64_t count = 0;
  for (uint64_t token = begin; token < end; ++token) count += is_set(mask, begin, token) ? 1 : 0;
  return count;
}

// The embedding of another id is no memory of this model.
void TokenFile::check_id(int64_t document, TokenId id) const {
  if (id >= 0 && static_cast<uint64_t>(id) < header_.vocabulary_size) return;
  refuse("document " + std::to_string(document) + " has the token id " + std::to_string(id) +
         ", and the model has " + std::to_string(header_.vocabulary_size) + " tokens");
}

void TokenFile::append_document(int64_t document, std::vector<int64_t>& tokens,
                                std::vector<int64_t>& targets) const {
  const std::vector<TokenId> ids = this->ids(document);
  const uint64_t begin = begin_of(document);
  const std::vector<uint8_t> mask = mask_of(begin, begin + ids.size());
  for (const TokenId id : ids) check_id(document, id);
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  const size_t first_target = targets.size();
  for (size_t t = 0; t < ids.size(); ++t) {
    const bool last = t + 1 == ids.size();
    targets.push_back(!last && is_set(mask, begin, begin + t) ? ids[t + 1] : kNotTrained);
  }
  auto other = std::lower_bound(
      others_.begin(), others_.end(), begin,
      [](const OtherTarget& entry, uint64_t token) { return entry.token < token; });
  for (; other != others_.end() && other->token < begin + ids.size(); ++other) {
    if (other->target != kNotTrained) check_id(document, other->target);
    targets[first_target + (other->token - begin)] = other->target;
  }
}

std::string TokenFile::report() const {
  const auto bytes =
      in_index<char>(header_.report_offset, header_.checksums_offset - header_.report_offset);
  std::string text(bytes.begin(), bytes.end());
  return text.substr(0, text.find('\0'));
}

}  // namespace longshore
