#include "offload/forecast/machine_rates.h"

#include <algorithm>
#include <cmath>

namespace longshore {
namespace {

// In machine descriptions this drive name matches any directory.
constexpr char kAnyDirectory[] = "*";

}  // namespace

double MachineRates::update_bytes(StateFormat format, int threads, int32_t ranks) const {
  const auto found = std::ranges::find(updates, format, &UpdateRate::format);
  if (found == updates.end()) return 0.0;
  const double share = found->bytes / ranks;
  return found->one_thread > 0.0 ? std::min(share, found->one_thread * threads) : share;
}

const GroupRates* MachineRates::group(DeviceKind device, int32_t ranks) const {
  const auto found = std::ranges::find_if(groups, [&](const GroupRates& group) {
    return group.device == device && group.ranks == ranks;
  });
  return found == groups.end() ? nullptr : &*found;
}

const ComputeRates* MachineRates::of(DeviceKind device, DType dtype) const {
  const auto found = std::ranges::find_if(compute, [&](const ComputeRates& rates) {
    return rates.device == device && rates.dtype == dtype;
  });
  return found == compute.end() ? nullptr : &*found;
}

const DriveRates* MachineRates::drive(const std::string& directory) const {
  for (const std::string& name : {directory, std::string(kAnyDirectory)}) {
    const auto found = std::ranges::find(drives, name, &DriveRates::directory);
    if (found != drives.end()) return &*found;
  }
  return nullptr;
}

double product_flops(const ComputeRates& rates, double width) {
  const std::vector<ProductRate>& products = rates.products;
  if (products.empty()) return 0.0;
  const auto above = std::ranges::lower_bound(products, width, {}, &ProductRate::width);
  if (above == products.begin()) return products.front().flops;
  if (above == products.end()) return products.back().flops;
  const ProductRate& below = *(above - 1);
  const double share = std::log(width / below.width) / std::log(above->width / below.width);
  return below.flops + share * (above->flops - below.flops);
}

}  // namespace longshore
