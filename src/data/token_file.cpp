#include "data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"

namespace longshore {
namespace {

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(TokenFileHeader) == 15 * sizeof(uint64_t));
static_assert(sizeof(OtherTarget) == 16);

constexpr size_t kNumbersOffset = 16;
constexpr size_t kHeaderChecksumOffset = kNumbersOffset + sizeof(TokenFileHeader);

uint64_t pieces_of(uint64_t body_bytes) {
  return (body_bytes + kTokenPieceBytes - 1) / kTokenPieceBytes;
}

}  // namespace

template <typename T>
std::span<const T> TokenFile::section(uint64_t offset, uint64_t count) const {
  return {reinterpret_cast<const T*>(file_.bytes().data() + offset), count};
}

TokenFile::TokenFile(const std::string& path, UniqueFd use) : use_(std::move(use)), file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const auto refuse = [&path](const std::string& what) {
    throw DataError(path + ": " + what + "; delete the file, it will be prepared again");
  };
  if (bytes.size() < static_cast<size_t>(kTokenHeaderBytes) ||
      std::memcmp(bytes.data(), "LNGSHTOK", 8) != 0) {
    refuse("is no file of prepared tokens");
  }
  uint32_t version = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof version);
  if (version != kTokenFileVersion) {
    refuse("has version " + std::to_string(version) + ", expected " +
           std::to_string(kTokenFileVersion));
  }
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + kHeaderChecksumOffset, sizeof checksum);
  if (checksum != hash64(bytes.first(kHeaderChecksumOffset))) refuse("its header is damaged");
  std::memcpy(&header_, bytes.data() + kNumbersOffset, sizeof header_);
  if (header_.file_bytes != bytes.size()) {
    refuse("is " + std::to_string(bytes.size()) + " bytes long, expected " +
           std::to_string(header_.file_bytes));
  }
  check_layout();
  ids_ = section<TokenId>(header_.ids_offset, header_.tokens);
  mask_ = section<uint8_t>(header_.mask_offset, (header_.tokens + 7) / 8);
  ends_ = section<uint64_t>(header_.ends_offset, header_.documents);
  others_ = section<OtherTarget>(header_.others_offset, header_.other_targets);
  const uint64_t pieces = pieces_of(header_.checksums_offset - kTokenHeaderBytes);
  checksums_ = section<uint64_t>(header_.checksums_offset, pieces);
  fingerprint_ = hash64(std::as_bytes(checksums_));
  checked_ = std::make_unique<std::atomic<bool>[]>(pieces);
  check_bytes(header_.ends_offset, header_.checksums_offset);
  for (int64_t d = 0; d < document_count(); ++d) {
    const bool right = end_of(d) > begin_of(d) && end_of(d) <= header_.tokens;
    if (!right || (d == 0 && row_goes_on(d))) refuse("document " + std::to_string(d) + " is wrong");
  }
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
  const bool ordered =
      counts && aligned && h.ids_offset == static_cast<uint64_t>(kTokenHeaderBytes) &&
      h.mask_offset <= bytes && h.ends_offset <= bytes && h.others_offset <= bytes &&
      h.report_offset <= bytes && h.checksums_offset <= bytes &&
      h.ids_offset + 4 * h.tokens <= h.mask_offset &&
      h.mask_offset + (h.tokens + 7) / 8 <= h.ends_offset &&
      h.ends_offset + 8 * h.documents <= h.others_offset &&
      h.others_offset + 16 * h.other_targets <= h.report_offset &&
      h.report_offset <= h.checksums_offset &&
      h.checksums_offset + 8 * pieces_of(h.checksums_offset - kTokenHeaderBytes) == bytes;
  if (!ordered) {
    throw DataError(file_.path() + ": its sections do not lie in the file; delete it");
  }
}

void TokenFile::check_bytes(uint64_t begin, uint64_t end) const {
  if (begin == end) return;
  const uint64_t body_end = header_.checksums_offset;
  const auto piece_bytes = static_cast<uint64_t>(kTokenPieceBytes);
  const uint64_t first = (begin - kTokenHeaderBytes) / piece_bytes;
  const uint64_t last = (end - 1 - kTokenHeaderBytes) / piece_bytes;
  for (uint64_t piece = first; piece <= last; ++piece) {
    if (checked_[piece].load(std::memory_order_relaxed)) continue;
    const uint64_t offset = kTokenHeaderBytes + piece * piece_bytes;
    const uint64_t count = std::min(piece_bytes, body_end - offset);
    if (hash64(file_.bytes().subspan(offset, count)) != checksums_[piece]) {
      throw DataError(file_.path() + ": damaged in the " + std::to_string(count) +
                      " bytes from offset " + std::to_string(offset) +
                      "; delete the file, it will be prepared again");
    }
    checked_[piece].store(true, std::memory_order_relaxed);
  }
}

void TokenFile::verify() const {
  check_bytes(kTokenHeaderBytes, header_.checksums_offset);
}

uint64_t TokenFile::begin_of(int64_t document) const {
  LONGSHORE_CHECK(document >= 0 && document < document_count())
      << document << " of " << document_count();
  return document == 0 ? 0 : end_of(document - 1);
}

bool TokenFile::row_goes_on(int64_t document) const {
  return (ends_[static_cast<size_t>(document)] & kRowGoesOn) != 0;
}

int64_t TokenFile::document_tokens(int64_t document) const {
  const uint64_t begin = begin_of(document);
  return static_cast<int64_t>(end_of(document) - begin);
}

std::span<const TokenId> TokenFile::ids(int64_t document) const {
  const uint64_t begin = begin_of(document), end = end_of(document);
  check_bytes(header_.ids_offset + 4 * begin, header_.ids_offset + 4 * end);
  check_bytes(header_.mask_offset + begin / 8, header_.mask_offset + (end + 7) / 8);
  return ids_.subspan(begin, end - begin);
}

int64_t TokenFile::document_trained_tokens(int64_t document) const {
  const uint64_t begin = begin_of(document), end = end_of(document);
  check_bytes(header_.mask_offset + begin / 8, header_.mask_offset + (end + 7) / 8);
  int64_t count = 0;
  for (uint64_t token = begin; token < end; ++token) count += trained(token) ? 1 : 0;
  return count;
}

void TokenFile::append_document(int64_t document, std::vector<int64_t>& tokens,
                                std::vector<int64_t>& targets) const {
  const std::span<const TokenId> ids = this->ids(document);
  const uint64_t begin = begin_of(document);
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  const size_t first_target = targets.size();
  for (size_t t = 0; t < ids.size(); ++t) {
    const bool last = t + 1 == ids.size();
    targets.push_back(!last && trained(begin + t) ? ids[t + 1] : kNotTrained);
  }
  auto other = std::lower_bound(
      others_.begin(), others_.end(), begin,
      [](const OtherTarget& entry, uint64_t token) { return entry.token < token; });
  for (; other != others_.end() && other->token < begin + ids.size(); ++other) {
    targets[first_target + (other->token - begin)] = other->target;
  }
}

std::string TokenFile::report() const {
  const auto bytes =
      section<char>(header_.report_offset, header_.checksums_offset - header_.report_offset);
  std::string text(bytes.begin(), bytes.end());
  return text.substr(0, text.find('\0'));
}

}  // namespace longshore
