// A token file of the cache. The target corrects the checksums of header and pieces, so that what
// they protect is reached.
#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "data/tokens/token_file.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {
namespace {

void put_hash(std::string& bytes, size_t at, std::string_view of) {
  const uint64_t hash = hash64(of);
  std::memcpy(bytes.data() + at, &hash, sizeof hash);
}

void correct_checksums(std::string& bytes) {
  constexpr size_t kNumbers = 16, kHeader = static_cast<size_t>(kTokenHeaderBytes),
                   kPiece = static_cast<size_t>(kTokenPieceBytes);
  TokenFileHeader header;
  uint32_t version = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof version);
  const size_t numbers = number_bytes(version);
  std::memcpy(&header, bytes.data() + kNumbers, numbers);
  const std::string_view all = bytes;
  const size_t end = std::min<uint64_t>(header.checksums_offset, bytes.size());
  for (size_t i = 0; kHeader + i * kPiece < end && end + 8 * (i + 1) <= bytes.size(); ++i) {
    const size_t begin = kHeader + i * kPiece;
    put_hash(bytes, end + 8 * i, all.substr(begin, std::min(kPiece, end - begin)));
  }
  put_hash(bytes, kNumbers + numbers, all.substr(0, kNumbers + numbers));
}

}  // namespace

bool fuzz_token_file(std::string_view input) {
  std::string bytes(input);
  if (bytes.size() >= static_cast<size_t>(kTokenHeaderBytes)) correct_checksums(bytes);
  const MemoryFile memory(bytes);
  const TokenFile file("tokens", memory.open());
  file.verify();
  file.report();
  int64_t tokens = 0;
  for (int64_t i = 0; i < std::min<int64_t>(file.document_count(), 100); ++i) {
    std::vector<int64_t> ids, targets;
    file.append_document(i, ids, targets);
    LONGSHORE_CHECK(std::ssize(ids) == file.document_tokens(i) && ids.size() == targets.size());
    LONGSHORE_CHECK(file.document_trained_tokens(i) >= 0);
    LONGSHORE_CHECK(file.ids(i).size() == ids.size());
    file.row_goes_on(i);
    for (size_t c = 0; c < kTokenColumns; ++c) {
      const auto column = static_cast<ColumnId>(c);
      if (!file.has_column(column)) continue;
      LONGSHORE_CHECK(file.column_of(i, column).size() == file.width_of(column) * ids.size());
    }
    tokens += std::ssize(ids);
  }
  LONGSHORE_CHECK(static_cast<uint64_t>(tokens) <= file.header().tokens);
  return true;
}

}  // namespace longshore
