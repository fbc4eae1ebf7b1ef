#include "model/unit_cut.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "model/model_spec.h"
#include "shard/flat_layout.h"

namespace longshore {
namespace {

using Kind = DecoderPart::Kind;

constexpr const char* kAttentionSuffix = ".attention";
constexpr const char* kMlpSuffix = ".mlp";

std::string block_name(int64_t layer) {
  return "block." + std::to_string(layer);
}

int64_t elements_of(const std::vector<ModuleParameter>& parameters) {
  int64_t sum = 0;
  for (const ModuleParameter& parameter : parameters) sum += parameter.spec.elements();
  return sum;
}

// Rows of each piece, so that none is larger than half a block; 0: the table is not.
int64_t rows_like_halves(const ArchSpec& arch) {
  const int64_t most = std::max(elements_of(block_parameters(arch, {}, 0, BlockPart::kAttention)),
                                elements_of(block_parameters(arch, {}, 0, BlockPart::kMlp)));
  const int64_t pieces = (arch.vocabulary * arch.hidden + most - 1) / most;
  return pieces < 2 ? 0 : (arch.vocabulary + pieces - 1) / pieces;
}

// Pieces begin where blocks of moments do, or bits would depend on the cut.
int64_t aligned_rows(const ArchSpec& arch, int64_t rows) {
  const int64_t aligned = align_up(rows, kBlockElements / std::gcd(kBlockElements, arch.hidden));
  return aligned < arch.vocabulary ? aligned : 0;
}

void add_pieces(std::vector<DecoderPart>& parts, Kind whole, Kind piece, int64_t vocabulary,
                int64_t rows) {
  if (rows == 0) {
    parts.push_back({.kind = whole});
    return;
  }
  for (int64_t first = 0; first < vocabulary; first += rows) {
    parts.push_back(
        {.kind = piece, .rows = {first, std::min(rows, vocabulary - first), vocabulary}});
  }
}

// The whole unit that a part is of.
const UnitSpec& unit_of(const ModelSpec& whole, const DecoderPart& part) {
  switch (part.kind) {
    case Kind::kEmbedding:
    case Kind::kEmbeddingPiece:
      return whole.units.front();
    case Kind::kHead:
    case Kind::kHeadPiece:
      return whole.units.back();
    default:
      return whole.units.at(static_cast<size_t>(part.layer) + 1);
  }
}

void take_half(const ArchSpec& arch, const DecoderPart& part, UnitSpec& unit) {
  const auto border = unit.parameters.begin() +
                      std::ssize(block_parameters(arch, {}, part.layer, BlockPart::kAttention));
  if (part.kind == Kind::kAttention) {
    unit.parameters.erase(border, unit.parameters.end());
    unit.name += kAttentionSuffix;
  } else {
    unit.parameters.erase(unit.parameters.begin(), border);
    unit.name += kMlpSuffix;
  }
}

ParamSpec piece_of(ParamSpec table, const TableRows& rows) {
  table.shape.front() = rows.count;
  table.first_row = rows.first;
  table.whole_rows = rows.all;
  return table;
}

void take_embedding_piece(const TableRows& rows, size_t number, UnitSpec& unit) {
  unit.parameters.front() = piece_of(unit.parameters.front(), rows);
  if (!rows.ends()) {
    unit.parameters.resize(1);  // learned positions are added last
    unit.carry_out.front().running = true;
  }
  unit.name += "." + std::to_string(number);
}

// Between pieces: the logarithm and the target's score so far, and x. Backward asks for no score,
// but the last piece's, which is the loss.
std::vector<CarryTensorSpec> head_carry(const TableRows& rows, int64_t hidden) {
  const bool to_last = rows.first + 2 * rows.count >= rows.all;
  return {{.elements_per_position = 1, .wide = true},
          {.elements_per_position = 1, .wide = true, .running = !to_last},
          {.elements_per_position = hidden,
           .wide_gradient = true,
           .passes = rows.begins() ? std::nullopt : std::optional<int32_t>(2)}};
}

void take_head_piece(const TableRows& rows, size_t number, UnitSpec& unit) {
  const bool tied = !unit.borrowed.empty();
  if (tied) {
    unit.borrowed = {{UnitId(static_cast<int32_t>(number)), 0}};
  } else {
    unit.parameters.back() = piece_of(unit.parameters.back(), rows);
  }
  // The first one has the norm.
  const int64_t norm = std::ssize(unit.parameters) - (tied ? 0 : 1);
  if (!rows.begins())
    unit.parameters.erase(unit.parameters.begin(), unit.parameters.begin() + norm);
  unit.name += "." + std::to_string(number);
}

}  // namespace

UnitCut cut_for(const UnitPolicy& policy, const ArchSpec& arch) {
  UnitCut cut;
  std::set<std::string> named;
  for (const std::vector<std::string>& group : policy.groups) {
    named.insert(group.begin(), group.end());
  }
  const bool all =
      policy.kind == UnitPolicy::Kind::kHalf || policy.kind == UnitPolicy::Kind::kPiece;
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    const std::string name = block_name(layer);
    const bool by_hand =
        named.contains(name + kAttentionSuffix) || named.contains(name + kMlpSuffix);
    if (by_hand || all) cut.halves.insert(layer);
  }
  if (policy.kind == UnitPolicy::Kind::kPiece) {
    const int64_t rows = policy.rows > 0 ? policy.rows : rows_like_halves(arch);
    cut.embedding_rows = cut.head_rows = rows == 0 ? 0 : aligned_rows(arch, rows);
  }
  return cut;
}

std::vector<DecoderPart> decoder_parts(const ArchSpec& arch, const UnitCut& cut) {
  std::vector<DecoderPart> parts;
  add_pieces(parts, Kind::kEmbedding, Kind::kEmbeddingPiece, arch.vocabulary, cut.embedding_rows);
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    if (!cut.halves.contains(layer)) {
      parts.push_back({Kind::kBlock, layer});
      continue;
    }
    parts.push_back({Kind::kAttention, layer});
    parts.push_back({Kind::kMlp, layer});
  }
  add_pieces(parts, Kind::kHead, Kind::kHeadPiece, arch.vocabulary, cut.head_rows);
  return parts;
}

ModelSpec cut_units(const ArchSpec& arch, const ModelSpec& whole, const UnitCut& cut) {
  LONGSHORE_CHECK(static_cast<int64_t>(whole.units.size()) == arch.layer_count() + 2);
  const bool tied = !whole.units.back().borrowed.empty();
  LONGSHORE_CHECK(!tied || cut.embedding_rows == cut.head_rows);
  ModelSpec model;
  size_t pieces = 0;  // so far, of this table
  for (const DecoderPart& part : decoder_parts(arch, cut)) {
    UnitSpec unit = unit_of(whole, part);
    unit.id = UnitId(static_cast<int32_t>(model.units.size()));
    if (part.rows.begins()) pieces = 0;
    switch (part.kind) {
      case Kind::kAttention:
      case Kind::kMlp:
        take_half(arch, part, unit);
        break;
      case Kind::kEmbeddingPiece:
        take_embedding_piece(part.rows, pieces++, unit);
        break;
      case Kind::kHeadPiece:
        take_head_piece(part.rows, pieces++, unit);
        if (!part.rows.ends()) unit.carry_out = head_carry(part.rows, arch.hidden);
        break;
      default:
        break;
    }
    model.units.push_back(std::move(unit));
  }
  validate_model_spec(model);
  return model;
}

}  // namespace longshore
