// Page: what an HTML page of this program is made of: one file without any other, light and dark
// as the reader has it, readable on a narrow screen. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// Text of unknown origin, as content or as an attribute's value in either kind of quotes.
std::string escape_html(std::string_view text);

// Doctype, title and the style that all pages share, then `style`. Close with kPageEnd.
std::string page_head(std::string_view title, std::string_view style);
inline constexpr std::string_view kPageEnd = "</html>\n";

struct Fact {
  std::string name, value;
};
// Names over values, in boxes side by side.
std::string fact_boxes(const std::vector<Fact>& facts);

// A table that scrolls by itself where it is wider than the page. Cells are HTML; the first of each
// row is its head.
std::string table_of(const std::vector<std::string>& head,
                     const std::vector<std::vector<std::string>>& rows);

// "12 345"
std::string with_thousands(int64_t number);
// "12.5 %"
std::string percent(double share);
// "1.5k", "0.25", "3e-05": about three digits.
std::string short_number(double number);

}  // namespace longshore
