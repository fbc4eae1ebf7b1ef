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

bool in_nf4(const BaseFiles& base) {
  const Quantisation found = base.directory().quantisation();
  return !base.random() && (found == Quantisation::kNf4 || found == Quantisation::kNf4F32);
}

// Returns whether the run asks for another format than that of the model's own files.
bool packs_anew(const RunConfig& config, const BaseFiles& base) {
  const bool same = config.adapter.base == AdapterSection::Base::kNf4 && in_nf4(base);
  return config.adapter.packs() && !same;
}

// A base in fp8, NF4 or MXFP4 stays so wherever packed matrices can be; elsewhere it is read as the
// bf16 values that it stands for. Unpacked to fp32, NF4 would have other values.
std::optional<Packing> chosen_packing(const RunConfig& config, const ArchSpec& arch,
                                      const BaseFiles& base) {
  using Base = AdapterSection::Base;
  using Parameters = OffloadSection::Parameters;
  if (in_nf4(base) && arch.transposed_weights) {
    throw ConfigError(base.directory().path() +
                      ": bitsandbytes' NF4 is not read in families that store their matrices "
                      "transposed; take the model's unquantised directory (F32, BF16 or F16)");
  }
  Packing packing{.compute = config.precision.compute};
  if (packs_anew(config, base)) {
    packing.format = config.adapter.base == Base::kNf4 ? PackedFormat::kNf4 : PackedFormat::kFp8;
    check_packable(arch, base.directory(), packing.format);
    return packing;
  }
  const bool stays = config.adapter.on() && !base.random() && base.directory().quantised() &&
                     config.offload.parameters != Parameters::kNvme &&
                     config.offload.optimizer != OffloadSection::Optimizer::kNvme &&
                     config.fsdp.gather != GatherMode::kHost &&
                     !(in_nf4(base) && config.precision.compute != DType::kBF16);
  if (!stays) return std::nullopt;
  packing.format = format_of(base.directory().quantisation());
  std::set<std::string> stored;
  for (const ModelDirectory::TensorRef& ref : base.directory().tensors()) {
    if (ref.packed == nullptr) continue;
    stored.insert(ref.tensor->name);
    packing.format = ref.packed->format();  // which all of them have
  }
  // A plan without weights counts all that the format can hold.
  if (!stored.empty()) packing.only = std::move(stored);
  return packing;
}

}  // namespace

BasePacking::BasePacking(const RunConfig& config, const ArchSpec& arch, const BaseFiles& base)
    : packing_(chosen_packing(config, arch, base)) {}

void BasePacking::open(const RunConfig& config, const ModelSpec& whole, const BaseFiles& base) {
  if (base.random() && packing_) {
    random_.emplace(whole, static_cast<uint64_t>(config.run.seed));
    packed_.emplace(pack_model_spec(whole, *packing_), packing_->compute, &*random_);
  }
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
