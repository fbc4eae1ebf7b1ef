// Packed units: a unit over packed matrices has the bits of the unit over their values, whole and
// in groups, each expert's matrix is packed by itself, and one matrix is unpacked at a time.
#include "model/models/packed_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/json.h"
#include "base/mxfp4.h"
#include "device/counting_allocator.h"
#include "device/device_memory.h"
#include "device/gpu_tensors.h"
#include "model/families/families.h"
#include "model/families/random_init.h"
#include "model/parameters/model_spec.h"
#include "shard/flat_layout.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

constexpr int64_t kTokens = 9;

ArchSpec preset(const std::string& name) {
  const std::string text = init_preset_config(name, {.vocabulary = 97, .eos_token = 3});
  return read_arch_spec(Json::parse(text), name);
}

ModelSpec frozen_spec(const ArchSpec& arch) {
  ModelSpec spec = make_model_spec(arch, {});
  for (UnitSpec& unit : spec.units) {
    for (ParamSpec& parameter : unit.parameters) parameter.frozen = true;
  }
  return spec;
}

// Packs random values, or makes random bytes of a format that is only read.
void fill(PackedFormat format, std::span<const int64_t> shape, std::span<std::byte> packed) {
  const at::Tensor random = at::randn({shape[0] * shape[1]}) * 0.2;
  if (format != PackedFormat::kMxfp4) {
    encode_packed(
        format, shape,
        [&random](int64_t begin, std::span<float> out) {
          std::copy_n(random.const_data_ptr<float>() + begin, out.size(), out.begin());
        },
        packed);
    return;
  }
  const Mxfp4Layout layout(shape[0], shape[1]);
  const at::Tensor bytes = at::randint(256, {layout.bytes()}, at::kByte);
  bytes.narrow(0, layout.scales_begin(), layout.scales_bytes()).remainder_(8).add_(118);
  std::memcpy(packed.data(), bytes.const_data_ptr(), packed.size());
}

// The parameters of a unit, packed and as the values that these stand for.
struct Both {
  std::vector<at::Tensor> packed, values;
};

void add_packed(const ParamSpec& parameter, PackedFormat format, at::ScalarType type, Both& both) {
  const std::span<const int64_t> matrix = std::span(parameter.shape).last(2);
  const DType compute = type == at::kFloat ? DType::kF32 : DType::kBF16;
  const StoredMatrices stored = stored_matrices(parameter, compute);
  EXPECT_EQ(stored.type, storage_of(format));
  EXPECT_EQ(stored.bytes, packed_bytes(format, matrix));
  at::Tensor packed = at::zeros({stored.count, stored.distance}, at::kByte);
  if (!parameter.stacked) packed = packed[0];
  const at::Tensor values = at::empty(parameter.shape, at::kFloat);
  const auto count = static_cast<size_t>(matrix[0] * matrix[1]);
  const auto row = static_cast<size_t>(stored.distance);
  for (size_t i = 0; i < static_cast<size_t>(values.numel()) / count; ++i) {
    const std::span<std::byte> bytes(static_cast<std::byte*>(packed.mutable_data_ptr()) + i * row,
                                     static_cast<size_t>(packed_bytes(format, matrix)));
    fill(format, matrix, bytes);
    decode_packed(format, matrix, bytes, 0, {values.mutable_data_ptr<float>() + i * count, count});
  }
  both.packed.push_back(packed);
  both.values.push_back(values.to(type));
}

Both parameters_of(const UnitSpec& unit, PackedFormat format, at::ScalarType type) {
  Both both;
  for (const ParamSpec& parameter : unit.parameters) {
    if (parameter.packed) {
      add_packed(parameter, format, type, both);
      continue;
    }
    both.packed.push_back((at::randn(parameter.shape) * 0.2).to(type));
    both.values.push_back(both.packed.back());
  }
  return both;
}

// Returns the outputs of units one after the other, then the gradients of their inputs.
std::vector<Carry> run(const Model& model, const std::vector<UnitId>& units,
                       const std::vector<std::vector<at::Tensor>>& parameters,
                       const at::Tensor& h) {
  std::vector<Carry> all = {{h}};
  for (size_t i = 0; i < units.size(); ++i) {
    all.push_back(model.unit(units[i]).forward(parameters[i], all.back(), {}));
  }
  Carry grad = {at::ones_like(h)};
  std::map<std::string, at::Tensor> sums;
  for (size_t i = units.size(); i-- > 0;) {
    NamedSink sink(model.spec(), units[i], sums);
    grad = model.unit(units[i]).backward(parameters[i], all[i], {}, grad, sink);
    all.push_back(grad);
  }
  return all;
}

void expect_bits_of_values(const std::string& name, PackedFormat format, DType compute,
                           const UnitCut& cut) {
  const at::NoGradGuard no_grad;
  at::manual_seed(7);
  const ArchSpec arch = preset(name);
  const DecoderModel plain(arch, frozen_spec(arch), cut);
  const PackedModel packed(&plain, {.format = format, .compute = compute});
  const at::ScalarType type = scalar_type_of(compute);
  std::vector<UnitId> units;
  std::vector<std::vector<at::Tensor>> of_packed, of_values;
  for (const UnitSpec& unit : packed.spec().units) {
    if (!unit.name.starts_with("block.0.experts")) continue;
    Both both = parameters_of(unit, format, type);
    units.push_back(unit.id);
    of_packed.push_back(std::move(both.packed));
    of_values.push_back(std::move(both.values));
  }
  EXPECT_EQ(units.size() > 1, !cut.grouped.empty()) << name;
  const at::Tensor h = at::randn({kTokens, arch.hidden}).to(type);
  const std::vector<Carry> got = run(packed, units, of_packed, h);
  const std::vector<Carry> expected = run(plain, units, of_values, h);
  ASSERT_EQ(got.size(), 1 + 2 * units.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size());
    for (size_t j = 0; j < got[i].size(); ++j) {
      EXPECT_TRUE(at::equal(got[i][j], expected[i][j])) << name << name_of(format) << i << " " << j;
    }
  }
}

// Single experts and stacked ones, in the files' order and transposed, in every format.
TEST(PackedModel, GivesExpertsTheBitsOfTheUnpackedValues) {
  const UnitCut halves{.halves = {0}}, groups{.halves = {0}, .grouped = {0}, .experts = 4};
  for (const UnitCut& cut : {halves, groups}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const std::string name : {"tiny-qwen3-moe", "tiny-gpt-oss"}) {
        expect_bits_of_values(name, PackedFormat::kNf4, compute, cut);
        expect_bits_of_values(name, PackedFormat::kFp8, compute, cut);
      }
      expect_bits_of_values("tiny-gpt-oss", PackedFormat::kMxfp4, compute, cut);
    }
  }
}

// Runs forward and backward of a block by autograd, and returns the outputs, the gradient of the
// input and those of the adapters.
Carry run_block(const Unit& unit, const ModelSpec& spec, UnitId id,
                const std::vector<at::Tensor>& parameters, const at::Tensor& h) {
  std::vector<at::Tensor> leaves = make_leaves(parameters);
  const UnitSpec& of_unit = spec.unit(id);
  for (size_t i = 0; i < of_unit.parameters.size(); ++i) {
    if (!of_unit.parameters[i].frozen) leaves[i].requires_grad_(true);
  }
  MicroBatch batch;
  batch.positions = at::arange(h.size(0), at::kLong);
  batch.document_starts = {0, h.size(0)};
  std::map<std::string, at::Tensor> sums;
  NamedSink sink(spec, id, sums);
  const Carry in{h.detach().requires_grad_(true)};
  Carry all;
  {
    const at::AutoGradMode grad_mode(true);
    all = unit.forward(leaves, in, batch);
  }
  const Carry grad{at::ones_like(all.front())};
  const Carry of_in = autograd_backward(leaves, in, all, grad, /*want_grad_in=*/true, sink);
  all.insert(all.end(), of_in.begin(), of_in.end());
  for (const auto& [name, sum] : sums) all.push_back(sum);
  return all;
}

// The second block of a small Llama, its matrices frozen and packed, with and without adapters.
struct PackedBlock {
  PackedBlock(bool dora, PackedFormat format, DType compute) {
    at::manual_seed(11);
    arch = preset("tiny-llama");
    arch.adapter.magnitudes = dora;
    for (const Module module : {Module::kQuery, Module::kUp, Module::kDown}) {
      arch.adapter.targets[{1, module}] = {.rank = 4, .scaling = 2.0};
    }
    ModelSpec spec = make_model_spec(arch, {});
    for (UnitSpec& unit : spec.units) {
      for (ParamSpec& parameter : unit.parameters) parameter.frozen = !parameter.adapter;
    }
    plain = std::make_unique<DecoderModel>(arch, spec, UnitCut{});
    packed =
        std::make_unique<PackedModel>(plain.get(), Packing{.format = format, .compute = compute});
    type = scalar_type_of(compute);
    both = parameters_of(packed->spec().unit(id), format, type);
    h = at::randn({kTokens, arch.hidden}).to(type);
  }
  Carry run(const Model& model, const std::vector<at::Tensor>& parameters) const {
    return run_block(model.unit(id), model.spec(), id, parameters, h);
  }

  ArchSpec arch;
  UnitId id{2};
  std::unique_ptr<DecoderModel> plain;
  std::unique_ptr<PackedModel> packed;
  at::ScalarType type = at::kFloat;
  Both both;
  at::Tensor h;
};

// The products of a block unpack in forward and again in backward, with LoRA and with DoRA.
TEST(PackedModel, GivesABlockTheBitsOfTheUnpackedValues) {
  for (const PackedFormat format : {PackedFormat::kNf4, PackedFormat::kFp8}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const bool dora : {false, true}) {
        const PackedBlock block(dora, format, compute);
        const Carry got = block.run(*block.packed, block.both.packed);
        const Carry expected = block.run(*block.plain, block.both.values);
        ASSERT_EQ(got.size(), 2 + 3 * (dora ? 3u : 2u));
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(at::equal(got[i], expected[i])) << name_of(format) << dora << " " << i;
          EXPECT_GT(got[i].abs().sum().item<double>(), 0.0) << i;
        }
      }
    }
  }
}

// Returns the most bytes that LibTorch's tensors take while `work` runs.
template <typename Work>
Bytes peak_of(const Work& work) {
  const DeviceMemory memory(kGiB, 0);
  const WorkspaceBudget budget(memory);
  work();
  return memory.usage().workspace.tensors_peak;
}

// Beside what the unpacked block needs, a packed one needs room for its largest matrix, not for
// all.
TEST(PackedModel, UnpacksOneMatrixOfABlockAtATime) {
  const PackedBlock block(false, PackedFormat::kNf4, DType::kF32);
  Bytes largest = 0, all = 0;
  for (const at::Tensor& values : block.both.values) {
    if (values.dim() != 2) continue;
    largest = std::max(largest, static_cast<Bytes>(values.nbytes()));
    all += static_cast<Bytes>(values.nbytes());
  }
  const Bytes plain = peak_of([&] { block.run(*block.plain, block.both.values); });
  const Bytes packed = peak_of([&] { block.run(*block.packed, block.both.packed); });
  EXPECT_GT(all, 3 * largest) << "the test means something";
  EXPECT_GT(packed, plain);
  EXPECT_LE(packed - plain, largest);
}

// At most both matrices of one expert are unpacked at a time, however many experts have tokens.
TEST(PackedModel, UnpacksOneExpertAtATime) {
  const at::NoGradGuard no_grad;
  at::manual_seed(5);
  const ArchSpec arch = preset("tiny-gpt-oss");
  const DecoderModel plain(arch, frozen_spec(arch), {.halves = {0}});
  const PackedModel packed(&plain, {.format = PackedFormat::kMxfp4, .compute = DType::kF32});
  const auto experts = std::ranges::find_if(packed.spec().units, [](const UnitSpec& unit) {
    return unit.name.starts_with("block.0.experts");
  });
  ASSERT_NE(experts, packed.spec().units.end());
  const Both both = parameters_of(*experts, PackedFormat::kMxfp4, at::kFloat);
  const at::Tensor h = at::randn({64, arch.hidden});
  Bytes of_one = 0;
  for (const at::Tensor& values : both.values) {
    if (values.dim() == 3) of_one += static_cast<Bytes>(values.nbytes()) / values.size(0);
  }
  const auto peak = [&](const Model& model, const std::vector<at::Tensor>& parameters) {
    return peak_of([&] { run(model, {experts->id}, {parameters}, h); });
  };
  const Bytes of_values = peak(plain, both.values), of_packed = peak(packed, both.packed);
  EXPECT_GT(of_packed, of_values);
  EXPECT_LE(of_packed - of_values, of_one);
}

// Routers, biases and norms stay as they are. A group of experts is rows of the whole parameter,
// each with the bytes of one matrix.
TEST(PackedModel, PacksTheMatricesOfExpertsOneByOne) {
  const ArchSpec arch = preset("tiny-gpt-oss");
  const ModelSpec whole =
      pack_model_spec(frozen_spec(arch), {.format = PackedFormat::kNf4, .compute = DType::kBF16});
  for (const ParamSpec& parameter : whole.units.at(1).parameters) {
    const bool attention = parameter.name.ends_with("_proj.weight");
    const bool experts =
        parameter.name.ends_with("_up_proj") || parameter.name.ends_with("down_proj");
    EXPECT_EQ(parameter.packed.has_value(), attention || experts) << parameter.name;
    if (!experts) continue;
    const std::span<const int64_t> matrix = std::span(parameter.shape).last(2);
    const StoredMatrices stored = stored_matrices(parameter, DType::kBF16);
    EXPECT_EQ(stored.count, arch.moe.experts);
    const Bytes bytes = stored.distance;
    EXPECT_GE(bytes, packed_bytes(PackedFormat::kNf4, matrix));
    EXPECT_LT(bytes, packed_bytes(PackedFormat::kNf4, matrix) + 512) << "padding";
  }
  const DecoderModel grouped(arch, frozen_spec(arch),
                             {.halves = {0}, .grouped = {0}, .experts = 4});
  const PackedModel pieces(&grouped, {.format = PackedFormat::kNf4, .compute = DType::kBF16});
  int64_t cut = 0;
  for (const UnitSpec& unit : pieces.spec().units) {
    for (const ParamSpec& piece : unit.parameters) {
      if (piece.whole_rows == 0 || !piece.packed) continue;
      const auto found =
          std::ranges::find(whole.units.at(1).parameters, piece.name, &ParamSpec::name);
      ASSERT_NE(found, whole.units.at(1).parameters.end()) << piece.name;
      EXPECT_EQ(piece.whole(), *found);
      UnitSpec alone;
      alone.parameters = {piece};
      const std::vector<FrozenPiece> bytes =
          FlatLayout(alone, 1, DType::kBF16).frozen_pieces(Rank(0));
      ASSERT_EQ(bytes.size(), 1U);
      EXPECT_EQ(bytes[0].parameter_begin,
                piece.first_row * stored_matrices(piece, DType::kBF16).distance);
      ++cut;
    }
  }
  EXPECT_GE(cut, 4);
}

}  // namespace
}  // namespace longshore
