// The parts of this program's HTML pages. A page is one file, follows the reader's light or
// dark setting and is readable on a narrow screen. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// Escapes untrusted text for use as content or as an attribute's value in either kind of quotes.
std::string escape_html(std::string_view text);

// Returns doctype, title, the shared style and then `style`. kPageEnd closes the page.
std::string page_head(std::string_view title, std::string_view style);
inline constexpr std::string_view kPageEnd = "</html>\n";

struct Fact {
  std::string name, value;
};
// Returns the facts in boxes side by side, each name above its value.
std::string fact_boxes(const std::vector<Fact>& facts);

// Returns a table that scrolls by itself if it is wider than the page. Cells are HTML; the first
// cell of each row is its header.
std::string table_of(const std::vector<std::string>& head,
                     const std::vector<std::vector<std::string>>& rows);

// Formats a share between 0 and 1: "12.5 %".
std::string percent(double share);
// Formats a number with about `digits` digits: "1.5k", "0.25", "3e-05".
std::string short_number(double number, int digits = 3);

}  // namespace longshore
