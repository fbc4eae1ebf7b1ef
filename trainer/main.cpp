// The longshore binary.
int main() {
  return 0;
}
