#include "shard/load_parameters.h"

#include <algorithm>

#include "shard/state_values.h"

namespace longshore {
namespace {

constexpr int64_t kChunkElements = int64_t{1} << 20;

void clear_moments(const StateSpans& state, const ShardPiece& piece) {
  if (state.exp_avg.empty()) return;
  for (const MomentSpan& moment : {state.exp_avg, state.exp_avg_sq}) {
    const MomentSpan part = moment.part(piece.shard_begin, piece.elements);
    std::ranges::fill(part.values, std::byte{0});
    std::ranges::fill(part.units, 0.0f);
  }
}

}  // namespace

void load_parameters(const StateWalk& walk, const ModelSpec& model,
                     const std::vector<FlatLayout>& layouts, Rank rank,
                     const ParameterReader& read) {
  std::vector<float> chunk(static_cast<size_t>(kChunkElements));
  walk.each([&](UnitId id, ShardStore::StateLease& state) {
    const UnitSpec& unit = model.unit(id);
    for (const ShardPiece& piece : layouts.at(static_cast<size_t>(id.value)).pieces(rank)) {
      const StateSpans spans = state.segment(piece.segment);
      const std::string& name = unit.parameters.at(static_cast<size_t>(piece.parameter)).name;
      for (int64_t done = 0; done < piece.elements; done += kChunkElements) {
        const int64_t elements = std::min(kChunkElements, piece.elements - done);
        const std::span<float> values(chunk.data(), static_cast<size_t>(elements));
        read(name, piece.parameter_begin + done, values);
        write_values(spans, piece.shard_begin + done, values);
      }
      clear_moments(spans, piece);
    }
  });
}

}  // namespace longshore
