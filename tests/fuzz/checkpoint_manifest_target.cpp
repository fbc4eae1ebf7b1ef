// manifest.json of a checkpoint. The target corrects the text's own checksum, so that what lies
// behind it is reached.
#include "base/hash.h"
#include "tests/fuzz/fuzz_targets.h"
#include "trainer/checkpoint/checkpoint_manifest.h"

namespace longshore {

bool fuzz_checkpoint_manifest(std::string_view bytes) {
  constexpr size_t kDigits = 16, kTail = 4;  // the digits, then a quote, "\n}\n"
  std::string text(bytes);
  if (text.size() > kDigits + kTail) {
    const size_t at = text.size() - kTail - kDigits;
    text.replace(at, kDigits, std::string(kDigits, '0'));
    text.replace(at, kDigits, hash_text(hash64(text)));
  }
  const CheckpointManifest manifest = parse_manifest(text, "manifest.json");
  const std::string written = format_manifest(manifest);
  LONGSHORE_CHECK(format_manifest(parse_manifest(written, "manifest.json")) == written);
  LONGSHORE_CHECK(manifest.file_bytes() >= 0);
  return true;
}

}  // namespace longshore
