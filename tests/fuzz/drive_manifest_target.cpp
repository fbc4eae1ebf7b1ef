// The block of a state file on a drive that names its version. The target corrects the block's own
// checksum, so that the fields behind it are reached.
#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "nvme/commit/manifest.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_drive_manifest(std::string_view bytes) {
  std::vector<std::byte> block(static_cast<size_t>(kBlockBytes)), again(block.size());
  std::ranges::copy(bytes_of(bytes.substr(0, block.size())), block.begin());
  const std::span<const std::byte> body = std::span<const std::byte>(block).first(block.size() - 8);
  const uint64_t checksum = hash64(body);
  std::memcpy(block.data() + body.size(), &checksum, sizeof checksum);
  claimed_run(block);
  const std::optional<Manifest> manifest = decode(block);
  if (!manifest) return false;
  encode(*manifest, again);
  const std::optional<Manifest> read = decode(again);
  LONGSHORE_CHECK(read && digest_of(read->point) == digest_of(manifest->point));
  LONGSHORE_CHECK(read->point.note == manifest->point.note && read->run.bits == manifest->run.bits);
  return true;
}

}  // namespace longshore
