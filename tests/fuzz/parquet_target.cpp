// A Parquet file: every row is an object in JSON, in pieces of any size.
#include "base/json.h"
#include "data/sources/row_source.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_parquet(std::string_view bytes) {
  constexpr size_t kMostBytes = size_t{1} << 22;
  if (!bytes.starts_with("PAR1")) return false;
  const MemoryFile memory(bytes);
  const std::unique_ptr<ByteSource> source = open_row_source(open_data_file(memory.path()));
  std::string all, piece(1000, '\0');
  for (size_t got = 1; got > 0 && all.size() < kMostBytes;) {
    got = source->read(piece);
    all.append(piece, 0, got);
  }
  for (size_t begin = 0, end = 0; (end = all.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    LONGSHORE_CHECK(
        parse_json(std::string_view(all).substr(begin, end - begin), {}, "row").is_object());
  }
  return true;
}

}  // namespace longshore
