// HubCache: models and data sets by their ids on the Hugging Face hub, where they are in its local
// cache. Looks at the cache's folders alone, never at the network. Plain functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// "owner/name", or "owner/name@revision": a branch, a tag or a commit.
bool is_hub_id(std::string_view text);

// Where the cache is, as Hugging Face's tools look for it: HF_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub.
std::string hub_cache_directory();

enum class HubKind : uint8_t { kModel, kDataset };

// The directory of the snapshot; nullopt where the cache has none.
std::optional<std::string> find_in_hub_cache(std::string_view id, HubKind kind = HubKind::kModel);

// The files of the snapshot's commit, fetched or not, in the order of their names, as the client
// that fetched it noted them (huggingface_hub's trees/COMMIT.json); nullopt where it did not.
std::optional<std::vector<std::string>> listed_in_hub_cache(const std::string& snapshot);

// What puts it there.
std::string fetch_command(std::string_view id, HubKind kind);

}  // namespace longshore
