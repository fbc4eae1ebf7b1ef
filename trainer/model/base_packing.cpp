#include "trainer/model/base_packing.h"

#include <set>
#include <utility>

#include "base/errors.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

// Throws for models whose matrices cannot be packed.
void check_packable(const ArchSpec& arch, const ModelDirectory& directory, PackedFormat format) {
  if (!arch.transposed_weights) return;
  throw ConfigError("adapter.base = \"" + std::string(name_of(format)) + "\": " + directory.path() +
                    " stores its matrices transposed, and those are not packed; set "
                    "adapter.base = \"published\"");
}

// A base in fp8 or MXFP4 stays so wherever packed matrices can be; elsewhere it is read as the bf16
// values that it stands for.
std::optional<Packing> chosen_packing(const RunConfig& config, const ArchSpec& arch,
                                      const BaseFiles& base) {
  using Base = AdapterSection::Base;
  using Parameters = OffloadSection::Parameters;
  Packing packing{.compute = config.precision.compute};
  if (config.adapter.packs()) {
    packing.format = config.adapter.base == Base::kNf4 ? PackedFormat::kNf4 : PackedFormat::kFp8;
    check_packable(arch, base.directory(), packing.format);
    return packing;
  }
  const bool stays = config.adapter.on() && !base.random() && base.directory().quantised() &&
                     config.offload.parameters != Parameters::kNvme &&
                     config.offload.optimizer != OffloadSection::Optimizer::kNvme &&
                     config.fsdp.gather != GatherMode::kHost;
  if (!stays) return std::nullopt;
  std::set<std::string> stored;
  for (const ModelDirectory::TensorRef& ref : base.directory().tensors()) {
    if (ref.packed != nullptr) stored.insert(ref.tensor->name);
  }
  const bool fp8 = base.directory().quantisation() == Quantisation::kFp8;
  packing.format = fp8 ? PackedFormat::kFp8 : PackedFormat::kMxfp4;
  // A plan without weights counts all that the format can hold.
  if (!stored.empty()) packing.only = std::move(stored);
  return packing;
}

}  // namespace

BasePacking::BasePacking(const RunConfig& config, const ArchSpec& arch, const BaseFiles& base)
    : packing_(chosen_packing(config, arch, base)) {}

void BasePacking::open(const RunConfig& config, const ModelSpec& whole, const BaseFiles& base) {
  if (base.weights() == nullptr) return;
  const bool in_files = config.offload.parameters == OffloadSection::Parameters::kFiles;
  if (in_files || packing_) files_.emplace(base.directory(), base.weights());
  if (packing_) {
    packed_.emplace(pack_model_spec(whole, *packing_), packing_->compute, &*files_, base.weights());
  }
}

void BasePacking::read_packed(const std::string& name, Bytes begin,
                              std::span<std::byte> out) const {
  LONGSHORE_CHECK(has(name)) << name << " is not packed";
  packed_->read_packed(name, begin, out);
}

void BasePacking::read_values(const std::string& name, int64_t begin, std::span<float> out) const {
  packed_->read_values(name, begin, out);
  if (packing_->compute == DType::kBF16) {
    for (float& value : out) value = bf16_to_float(float_to_bf16_nearest(value));
  }
}

}  // namespace longshore
