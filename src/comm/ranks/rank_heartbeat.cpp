#include "comm/ranks/rank_heartbeat.h"

#include "base/json.h"
#include "base/texts.h"
#include "comm/store/store.h"

namespace longshore {
namespace {

// The maximum length of a printed operation text.
constexpr size_t kMaxText = 1000;

}  // namespace

std::string RankHeartbeat::to_json() const {
  Json object = {{"number", number}, {"leaving", leaving}, {"knows_failure", knows_failure}};
  object["groups"] = Json::object();
  for (const auto& [key, group] : groups) {
    object["groups"][key] = {{"issued", group.issued},
                             {"running", group.running},
                             {"finished", group.finished},
                             {"text", group.text}};
  }
  return object.dump();
}

RankHeartbeat RankHeartbeat::from_json(const std::string& text) {
  try {
    const Json object =
        parse_json(text, {.max_bytes = kMiB, .max_depth = 4, .max_values = 10'000}, "the store");
    RankHeartbeat heartbeat;
    heartbeat.number = object.at("number").get<int64_t>();
    heartbeat.leaving = object.at("leaving").get<bool>();
    heartbeat.knows_failure = object.at("knows_failure").get<bool>();
    for (const auto& [key, group] : object.at("groups").items()) {
      heartbeat.groups[key] = {.issued = group.at("issued").get<int64_t>(),
                               .running = group.at("running").get<int64_t>(),
                               .finished = group.at("finished").get<bool>(),
                               .text = printable(group.at("text").get<std::string>(), kMaxText)};
    }
    return heartbeat;
  } catch (const std::exception& error) {
    throw StoreError(std::string("a rank's heartbeat cannot be read: ") + error.what());
  }
}

}  // namespace longshore
