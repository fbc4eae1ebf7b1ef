#include "shard/load_parameters.h"

#include <algorithm>
#include <map>
#include <memory>

#include "shard/shard_store.h"

namespace longshore {
namespace {

// 1 MiB of fp32 values keeps every core busy within a unit, and still reads drives in long pieces.
// The number is a multiple of the block of 8-bit moments.
constexpr int64_t kChunkElements = int64_t{1} << 18;
static_assert(kChunkElements % kMomentBlockElements == 0);

// One block of work loads these values of a parameter, or bytes if it is packed.
struct Chunk {
  const ParamSpec* parameter = nullptr;
  Segment segment = Segment::kFrozen;
  StorageType type = StorageType::kF32;  // of a frozen parameter
  int64_t begin = 0;                     // first one, in the whole parameter
  int64_t count = 0;
  int64_t place = 0;  // in the rank's shard of `segment`: first element; frozen: first byte
};

// Appends a piece in chunks of at most `most`; each of its items takes `width` places.
void add_chunks(Chunk piece, int64_t most, Bytes width, std::vector<Chunk>& chunks) {
  const int64_t end = piece.begin + piece.count;
  while (piece.begin < end) {
    piece.count = std::min(most, end - piece.begin);
    chunks.push_back(piece);
    piece.begin += piece.count;
    piece.place += piece.count * width;
  }
}

std::vector<Chunk> chunks_of(const UnitSpec& unit, const FlatLayout& layout, Rank rank) {
  std::vector<Chunk> chunks;
  for (const ShardPiece& piece : layout.trained_pieces(rank)) {
    add_chunks({.parameter = &unit.parameters.at(static_cast<size_t>(piece.parameter)),
                .segment = piece.segment,
                .begin = piece.parameter_begin,
                .count = piece.elements,
                .place = piece.shard_begin},
               kChunkElements, 1, chunks);
  }
  for (const FrozenPiece& piece : layout.frozen_pieces(rank)) {
    const bool packed = is_packed(piece.type);
    const Bytes width = packed ? 1 : width_of(number_of(piece.type));
    add_chunks({.parameter = &unit.parameters.at(static_cast<size_t>(piece.parameter)),
                .type = piece.type,
                .begin = piece.parameter_begin / width,
                .count = piece.bytes / width,
                .place = piece.shard_begin},
               packed ? kChunkElements * Bytes{sizeof(float)} : kChunkElements, width, chunks);
  }
  return chunks;
}

void clear_moments(const StateSpans& state, const Chunk& chunk) {
  for (const MomentSpan& moment : state.regions) {
    if (moment.empty()) continue;
    const MomentSpan part = moment.part(chunk.place, chunk.count);
    std::ranges::fill(part.values, std::byte{0});
    std::ranges::fill(part.units, 0.0f);
  }
}

// Passes the chunk's values to `use`; they are gone afterwards.
void read_chunk(const Chunk& chunk, const ParameterReader& read,
                const std::function<void(std::span<const float> values)>& use) {
  const auto count = static_cast<size_t>(chunk.count);
  const auto memory = std::make_unique_for_overwrite<float[]>(count);
  const std::span<float> values(memory.get(), count);
  read(chunk.parameter->name, chunk.begin, values);
  use(values);
}

void load_chunk(const Chunk& chunk, const StateSpans& spans, const ParameterReader& read) {
  read_chunk(chunk, read, [&](std::span<const float> values) {
    if (chunk.segment != Segment::kFrozen) return write_values(spans, chunk.place, values);
    const Bytes bytes = chunk.count * width_of(number_of(chunk.type));
    store_numbers(
        chunk.type, values,
        spans.frozen.subspan(static_cast<size_t>(chunk.place), static_cast<size_t>(bytes)));
  });
  if (chunk.segment != Segment::kFrozen) clear_moments(spans, chunk);
}

void read_packed_chunk(const Chunk& chunk, const PackedReader& read) {
  std::vector<std::byte> bytes(static_cast<size_t>(chunk.count));
  read(chunk.parameter->name, chunk.begin, bytes);
}

}  // namespace

void for_each_block_in_order(int64_t blocks, const std::function<void(int64_t block)>& work) {
  for (int64_t block = 0; block < blocks; ++block) work(block);
}

void load_parameters(const StateSweep& sweep, const ModelSpec& model,
                     const std::vector<FlatLayout>& layouts, Rank rank, const ParameterReader& read,
                     const ForEachBlock& each_block) {
  sweep.each([&](UnitId id, ShardStore::StateLease& state) {
    const FlatLayout& layout = layouts.at(static_cast<size_t>(id.value));
    std::map<Segment, StateSpans> spans;
    for (const Segment segment : kSegments) spans.emplace(segment, state.segment(segment));
    std::vector<Chunk> chunks = chunks_of(model.unit(id), layout, rank);
    // Frozen parameters that the tier does not hold stay in the model's files.
    if (spans.at(Segment::kFrozen).frozen.empty()) {
      std::erase_if(chunks, [](const Chunk& chunk) { return chunk.segment == Segment::kFrozen; });
    }
    each_block(static_cast<int64_t>(chunks.size()), [&](int64_t block) {
      const Chunk& chunk = chunks.at(static_cast<size_t>(block));
      load_chunk(chunk, spans.at(chunk.segment), read);
    });
  });
}

void read_parameters(const ModelSpec& model, const std::vector<FlatLayout>& layouts, Rank rank,
                     const ParameterReader& read, const PackedReader& read_packed,
                     const ForEachBlock& each_block) {
  for (const UnitSpec& unit : model.units) {
    const FlatLayout& layout = layouts.at(static_cast<size_t>(unit.id.value));
    const std::vector<Chunk> chunks = chunks_of(unit, layout, rank);
    each_block(static_cast<int64_t>(chunks.size()), [&](int64_t block) {
      const Chunk& chunk = chunks.at(static_cast<size_t>(block));
      if (is_packed(chunk.type)) {
        read_packed_chunk(chunk, read_packed);
      } else {
        read_chunk(chunk, read, [](std::span<const float>) {});
      }
    });
  }
}

}  // namespace longshore
