#include "trainer/model/frozen_check.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/texts.h"
#include "hf/tensor_dtype.h"

namespace longshore {
namespace {

// A text that a rank gives the others at once; World::exchange allows 4 MiB.
constexpr size_t kMostText = 2 << 20;
constexpr Bytes kPiece = kMiB;

// One rank read this piece of a tensor.
struct Part {
  int32_t rank = 0;
  SummedRange range;
};

// Parts by the tensor's index, ordered by their first byte.
using Parts = std::vector<std::vector<Part>>;

const ReadSums& sums_of(const StoredTensor& stored) {
  const ReadSums* const sums = stored.file->read_sums();
  LONGSHORE_CHECK(sums != nullptr) << stored.name;
  return *sums;
}

size_t index_of(const StoredTensor& stored) {
  return static_cast<size_t>(stored.tensor - stored.file->tensors().data());
}

// Gives all ranks the texts of all, which may be longer than one exchange allows.
std::vector<std::string> exchange_long(World& world, const std::string& what,
                                       const std::string& mine) {
  std::vector<std::string> texts;
  for (size_t begin = 0;; begin += kMostText) {
    const bool more = mine.size() > begin + kMostText;
    const std::string piece =
        (more ? "+" : ".") + mine.substr(std::min(begin, mine.size()), kMostText);
    const std::vector<std::string> all = world.exchange(what, piece);
    texts.resize(all.size());
    bool any = false;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      texts[rank] += all[rank].substr(1);
      any = any || all[rank][0] == '+';
    }
    if (!any) return texts;
  }
}

// Reads the next number of a text that this program wrote.
uint64_t next_number(std::string_view& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  LONGSHORE_CHECK(error == std::errc()) << "a sum of another rank";
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return number;
}

std::string hex(uint64_t number) {
  return formatted("%llx ", static_cast<unsigned long long>(number));
}

// Returns what all ranks read of each tensor. Collective.
Parts parts_of_ranks(const std::vector<StoredTensor>& tensors, World* world) {
  std::string mine;
  Parts parts(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const SummedRange& range : sums_of(tensors[i]).ranges(index_of(tensors[i]))) {
      if (world == nullptr) parts[i].push_back({0, range});
      mine += hex(i) + hex(static_cast<uint64_t>(range.begin)) +
              hex(static_cast<uint64_t>(range.end)) + hex(range.sum);
    }
  }
  if (world == nullptr) return parts;
  const std::vector<std::string> texts = exchange_long(*world, "the sums of the weights", mine);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::string_view text = texts[rank];
    while (!text.empty()) {
      const auto index = static_cast<size_t>(next_number(text));
      SummedRange range;
      range.begin = static_cast<Bytes>(next_number(text));
      range.end = static_cast<Bytes>(next_number(text));
      range.sum = next_number(text);
      parts.at(index).push_back({static_cast<int32_t>(rank), range});
    }
  }
  for (std::vector<Part>& all : parts) {
    std::ranges::stable_sort(all, {}, [](const Part& part) { return part.range.begin; });
  }
  return parts;
}

uint64_t sum_again(const StoredTensor& stored, Bytes begin, Bytes end) {
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPiece, end - begin)));
  uint64_t sum = 0;
  while (begin < end) {
    const std::span<std::byte> part =
        std::span(piece).first(static_cast<size_t>(std::min(kPiece, end - begin)));
    stored.file->read(*stored.tensor, begin, part);
    sum += place_sum(begin, part);
    begin += static_cast<Bytes>(part.size());
  }
  return sum;
}

// A piece that two parts share: it is summed once more by the rank of the later one, and counts
// once.
struct Shared {
  size_t tensor = 0;
  int32_t rank = 0;
  Bytes begin = 0;
  Bytes end = 0;
};

// Chooses parts that cover the whole tensor, and adds their sums and what they share. Returns
// nullopt if a byte was read by no rank.
std::optional<uint64_t> cover(const std::vector<Part>& parts, Bytes bytes, size_t tensor,
                              std::vector<Shared>& shared) {
  uint64_t sum = 0;
  Bytes done = 0;
  for (size_t next = 0; done < bytes;) {
    const Part* best = nullptr;
    for (; next < parts.size() && parts[next].range.begin <= done; ++next) {
      if (best == nullptr || parts[next].range.end > best->range.end) best = &parts[next];
    }
    if (best == nullptr || best->range.end <= done) return std::nullopt;
    sum += best->range.sum;
    if (best->range.begin < done) {
      shared.push_back({tensor, best->rank, best->range.begin, done});
    }
    done = best->range.end;
  }
  return sum;
}

// Takes what is counted twice off the sums. Collective.
void subtract_shared(const std::vector<StoredTensor>& tensors, const std::vector<Shared>& shared,
                     World* world, std::vector<std::optional<uint64_t>>& sums) {
  // All ranks found the same list, so either all come here or none.
  if (shared.empty()) return;
  LONGSHORE_CHECK(world != nullptr) << "parts of one process do not overlap";
  std::string mine;
  for (const Shared& piece : shared) {
    if (piece.rank != world->ranks().rank) continue;
    mine += hex(sum_again(tensors[piece.tensor], piece.begin, piece.end));
  }
  const std::vector<std::string> texts = exchange_long(*world, "the shared sums", mine);
  std::vector<std::string_view> rest(texts.begin(), texts.end());
  for (const Shared& piece : shared) {
    const uint64_t twice = next_number(rest[static_cast<size_t>(piece.rank)]);
    if (sums[piece.tensor]) *sums[piece.tensor] -= twice;
  }
}

std::string described(const StoredTensor& stored, uint64_t sum) {
  return described_form(*stored.tensor) + " " + hash_text(sum);
}

}  // namespace

std::string described_form(const TensorInfo& tensor) {
  return std::string(name_of(tensor.dtype)) + " " + format_shape(tensor.shape);
}

StartIdentity read_identity(const ModelSource& source, World* world) {
  const std::vector<StoredTensor> tensors = source.stored_tensors();
  if (world != nullptr && world->ranks().size == 1) world = nullptr;
  const Parts parts = parts_of_ranks(tensors, world);
  std::vector<std::optional<uint64_t>> sums;
  std::vector<Shared> shared;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<Shared> own;
    sums.push_back(cover(parts[i], tensors[i].tensor->bytes, i, own));
    if (sums.back()) shared.insert(shared.end(), own.begin(), own.end());
  }
  subtract_shared(tensors, shared, world, sums);
  StartIdentity identity{.model = source.fingerprint()};
  Hasher all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!sums[i]) continue;
    const std::string text = described(tensors[i], *sums[i]);
    all.update(tensors[i].name + " " + text + "\n");
    if (tensors[i].frozen) identity.frozen.emplace(tensors[i].name, text);
  }
  const bool whole = std::ranges::all_of(sums, [](const auto& sum) { return sum.has_value(); });
  if (whole && !tensors.empty()) identity.values = hash_text(all.digest());
  return identity;
}

void read_rest_of_frozen(const ModelSource& source) {
  const std::vector<StoredTensor> tensors = source.stored_tensors();
  Bytes total = 0;
  for (const StoredTensor& stored : tensors) total += stored.frozen ? stored.tensor->bytes : 0;
  Progress progress("comparing the frozen model", total);
  for (const StoredTensor& stored : tensors) {
    if (!stored.frozen) continue;
    Bytes begin = 0;
    for (const SummedRange& range : sums_of(stored).ranges(index_of(stored))) {
      sum_again(stored, begin, range.begin);
      begin = range.end;
    }
    sum_again(stored, begin, stored.tensor->bytes);
    progress.add(stored.tensor->bytes);
  }
}

void forget_reads(const ModelSource& source) {
  std::set<const SafetensorsFile*> files;
  for (const StoredTensor& stored : source.stored_tensors()) files.insert(stored.file);
  for (const SafetensorsFile* const file : files) file->read_sums()->restart();
}

std::string other_values(const std::map<std::string, std::string>& saved,
                         const StartIdentity& found, const ModelSource& source) {
  const StoredTensor* first = nullptr;
  int64_t others = 0;
  const std::vector<StoredTensor> tensors = source.stored_tensors();
  for (const StoredTensor& stored : tensors) {
    const auto before = saved.find(stored.name), now = found.frozen.find(stored.name);
    if (before == saved.end() || now == found.frozen.end()) continue;
    if (before->second == now->second) continue;
    if (first == nullptr) {
      first = &stored;
    } else {
      ++others;
    }
  }
  if (first == nullptr) return {};
  std::string text = first->file->path() + ": tensor '" + printable(first->name) + "'";
  if (others > 0) text += " and " + std::to_string(others) + " more frozen tensors";
  return text + (others > 0 ? " have" : " has") + " other values";
}

std::string frozen_difference(const StartIdentity& saved, const StartIdentity& found,
                              const ModelSource& source, const std::string& when) {
  const std::string text = other_values(saved.frozen, found, source);
  if (text.empty()) return {};
  return text + " than " + when +
         ", and frozen parameters must stay as they are; restore the file, or start over with "
         "checkpoint.resume = \"never\"";
}

std::string not_compared(const StartIdentity& saved, const StartIdentity& found,
                         const ModelSource& source, const std::string& unread) {
  int64_t frozen = 0, not_saved = 0, not_read = 0;
  for (const StoredTensor& stored : source.stored_tensors()) {
    if (!stored.frozen) continue;
    ++frozen;
    if (!found.frozen.contains(stored.name)) {
      ++not_read;
    } else if (!saved.frozen.contains(stored.name)) {
      ++not_saved;
    }
  }
  if (not_saved + not_read == 0) return {};
  return std::to_string(not_saved + not_read) + " of " + std::to_string(frozen) +
         " frozen tensors of " + source.directory().path() +
         " were not compared with those that the run began with: " +
         (not_saved > 0 ? "an earlier version of Longshore kept no sums of them" : unread);
}

bool read_all_frozen(const StartIdentity& found, const ModelSource& source) {
  return std::ranges::all_of(source.stored_tensors(), [&found](const StoredTensor& stored) {
    return !stored.frozen || found.frozen.contains(stored.name);
  });
}

}  // namespace longshore
