#include "comm/watchdog/blame.h"

#include <set>

#include "base/texts.h"

namespace longshore {
namespace {

const GroupBeat* group_of(const RankView& rank, const std::string& group) {
  const auto found = rank.heartbeat.groups.find(group);
  return found == rank.heartbeat.groups.end() ? nullptr : &found->second;
}

// Returns the ranks in a group's key, such as "shards[0,1]".
std::vector<int32_t> members_of(const std::string& key) {
  std::vector<int32_t> members;
  const size_t open = key.rfind('[');
  if (open == std::string::npos) return members;
  int32_t number = 0;
  for (size_t i = open + 1; i < key.size(); ++i) {
    if (key[i] >= '0' && key[i] <= '9' && number < 1'000'000) {
      number = number * 10 + (key[i] - '0');
    } else {
      members.push_back(number);
      number = 0;
    }
  }
  return members;
}

std::string last_operation(const GroupBeat* group) {
  if (group == nullptr || group->running == 0) return "it has run no operation in this group";
  return "its last operation there, " + std::string(group->finished ? "finished" : "under way") +
         ", is " + group->text;
}

// Follows the chain of waiting ranks from group to group to a rank that does not wait.
class Chase {
 public:
  Chase(const Board& board, double waited_seconds) : board_(board), waited_(waited_seconds) {}

  std::optional<FailureReason> follow(const std::string& group, int64_t sequence,
                                      const std::string& operation) {
    if (!visited_.insert(group).second) return std::nullopt;
    for (const int32_t member : members_of(group)) {
      if (member < 0 || static_cast<size_t>(member) >= board_.ranks.size()) continue;
      const RankView& rank = board_.ranks[static_cast<size_t>(member)];
      const GroupBeat* there = group_of(rank, group);
      const bool begun = there != nullptr && there->running >= sequence;
      if (begun || member == board_.self) continue;
      for (const auto& [key, other] : rank.heartbeat.groups) {
        if (other.finished) continue;
        if (const auto found = follow(key, other.running, other.text)) return found;
      }
      return FailureReason{member, rank.text(member) + " has not reached " + operation +
                                       " within " + seconds_text(waited_) + "; " +
                                       last_operation(there)};
    }
    return std::nullopt;
  }

 private:
  const Board& board_;
  double waited_;
  std::set<std::string> visited_;
};

}  // namespace

std::string seconds_text(double seconds) {
  return formatted("%.1f s", seconds);
}

std::string RankView::text(int32_t rank) const {
  return rank_text(rank, identity);
}

std::optional<int32_t> most_silent(const Board& board, double silence_seconds) {
  std::optional<int32_t> found;
  for (size_t i = 0; i < board.ranks.size(); ++i) {
    const auto rank = static_cast<int32_t>(i);
    if (rank == board.self || board.ranks[i].heartbeat.leaving) continue;
    if (board.ranks[i].silent_seconds < silence_seconds) continue;
    if (!found ||
        board.ranks[i].silent_seconds > board.ranks[static_cast<size_t>(*found)].silent_seconds) {
      found = rank;
    }
  }
  return found;
}

FailureReason silence_of(const Board& board, int32_t rank) {
  const RankView& silent = board.ranks[static_cast<size_t>(rank)];
  return {rank, silent.text(rank) + " has been silent for " + seconds_text(silent.silent_seconds) +
                    ": it is stopped, or its host cannot be reached"};
}

std::optional<FailureReason> find_disagreement(const Board& board) {
  for (const auto& [key, members] : board.members) {
    const RankView& first = board.ranks[static_cast<size_t>(members[0])];
    const GroupBeat* of_first = group_of(first, key);
    if (of_first == nullptr || of_first->finished) continue;
    for (const int32_t member : members) {
      const RankView& rank = board.ranks[static_cast<size_t>(member)];
      const GroupBeat* there = group_of(rank, key);
      if (there == nullptr || there->finished || there->running != of_first->running) continue;
      if (of_first->text == there->text) continue;
      return FailureReason{member, rank.text(member) + " disagrees: it is in " + there->text +
                                       " where rank " + std::to_string(members[0]) + " is in " +
                                       of_first->text};
    }
  }
  return std::nullopt;
}

FailureReason blame_for_delay(const Board& board, const std::string& group, int64_t sequence,
                              const std::string& operation, double waited_seconds,
                              double silence_seconds) {
  if (const auto silent = most_silent(board, silence_seconds)) return silence_of(board, *silent);
  if (const auto disagreement = find_disagreement(board)) return *disagreement;
  if (const auto found = Chase(board, waited_seconds).follow(group, sequence, operation)) {
    return *found;
  }
  return {-1, "all ranks of the group are alive and in " + operation +
                  ", but it does not finish: the network between them may be broken"};
}

}  // namespace longshore
