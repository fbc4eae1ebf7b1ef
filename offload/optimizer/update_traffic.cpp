#include "offload/optimizer/update_traffic.h"

namespace longshore {

UpdateTraffic update_traffic(const StateOptions& options, Segment segment, int64_t elements) {
  UpdateTraffic traffic;
  for (Region region : kRegions) {
    const Bytes bytes = region_bytes(options, segment, region, elements);
    const bool write_only = region == Region::kHigh && !splits_master(options.format);
    if (!write_only) traffic.read += bytes;
    if (region != Region::kGradient) traffic.written += bytes;
  }
  return traffic;
}

}  // namespace longshore
