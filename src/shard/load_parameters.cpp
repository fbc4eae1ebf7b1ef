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

// The elements of a parameter that one block of work loads.
struct Chunk {
  const ParamSpec* parameter;
  ShardPiece piece;
  // Returns the elements of a value.
  int64_t width() const { return parameter->in_halves ? kHalves : 1; }
};

std::vector<Chunk> chunks_of(const UnitSpec& unit, const std::vector<ShardPiece>& pieces) {
  std::vector<Chunk> chunks;
  for (const ShardPiece& piece : pieces) {
    const ParamSpec& parameter = unit.parameters.at(static_cast<size_t>(piece.parameter));
    for (int64_t done = 0; done < piece.elements; done += kChunkElements) {
      Chunk chunk{&parameter, piece};
      chunk.piece.parameter_begin += done;
      chunk.piece.shard_begin += done;
      chunk.piece.elements = std::min(kChunkElements, piece.elements - done);
      chunks.push_back(chunk);
    }
  }
  return chunks;
}

void clear_moments(const StateSpans& state, const ShardPiece& piece) {
  for (const MomentSpan& moment : state.regions) {
    if (moment.empty()) continue;
    const MomentSpan part = moment.part(piece.shard_begin, piece.elements);
    std::ranges::fill(part.values, std::byte{0});
    std::ranges::fill(part.units, 0.0f);
  }
}

// Returns whether the tier does not hold the frozen parameters: they stay in the model's files.
bool is_elsewhere(const StateSpans& frozen) {
  return frozen.master.empty() && frozen.high.empty();
}

// Passes the chunk's values to `use`; they are gone afterwards.
void read_chunk(const Chunk& chunk, const ParameterReader& read,
                const std::function<void(std::span<const float> values)>& use) {
  const auto count = static_cast<size_t>(chunk.piece.elements / chunk.width());
  const auto memory = std::make_unique_for_overwrite<float[]>(count);
  const std::span<float> values(memory.get(), count);
  read(chunk.parameter->name, chunk.piece.parameter_begin / chunk.width(), values);
  use(values);
}

void load_chunk(const Chunk& chunk, const StateSpans& spans, const ParameterReader& read) {
  read_chunk(chunk, read, [&](std::span<const float> values) {
    const auto write = chunk.parameter->in_halves ? write_halves : write_values;
    write(spans, chunk.piece.shard_begin, values);
  });
  clear_moments(spans, chunk.piece);
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
    std::vector<ShardPiece> pieces = layout.pieces(rank);
    if (is_elsewhere(spans.at(Segment::kFrozen))) {
      std::erase_if(pieces,
                    [](const ShardPiece& piece) { return piece.segment == Segment::kFrozen; });
    }
    const std::vector<Chunk> chunks = chunks_of(model.unit(id), pieces);
    each_block(static_cast<int64_t>(chunks.size()), [&](int64_t block) {
      const Chunk& chunk = chunks.at(static_cast<size_t>(block));
      load_chunk(chunk, spans.at(chunk.piece.segment), read);
    });
  });
}

void read_parameters(const ModelSpec& model, const std::vector<FlatLayout>& layouts, Rank rank,
                     const ParameterReader& read, const ForEachBlock& each_block) {
  for (const UnitSpec& unit : model.units) {
    const FlatLayout& layout = layouts.at(static_cast<size_t>(unit.id.value));
    const std::vector<Chunk> chunks = chunks_of(unit, layout.pieces(rank));
    each_block(static_cast<int64_t>(chunks.size()), [&](int64_t block) {
      read_chunk(chunks.at(static_cast<size_t>(block)), read, [](std::span<const float>) {});
    });
  }
}

}  // namespace longshore
