package postbus_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const hazardsFile = "HAZARDS.md"

var updateHazards = flag.Bool("update-hazards", false, "write the last column of "+hazardsFile+" anew from the names of the tests")

// TestHazards keeps HAZARDS.md complete in both directions: a test that carries a number (TestRelay_H08_..., several
// numbers are possible) stands in the row of that number, and a row without a test does not pass. After adding a test:
//
//	go test -run TestHazards -update-hazards .
func TestHazards(t *testing.T) {
	text, err := os.ReadFile(hazardsFile)
	if err != nil {
		t.Fatal(err)
	}
	tests := numberedTests(t)
	if *updateHazards {
		text = []byte(updateTable(string(text), tests))
		if err := os.WriteFile(hazardsFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, fault := range checkHazards(string(text), tests) {
		t.Error(fault)
	}
}

// A hazard is one row of the table.
type hazard struct {
	number string
	text   string
	heldBy string
}

const (
	heldSeparator = "<br>"
	notApplicable = "not applicable: "
)

var (
	numberPattern   = regexp.MustCompile(`^[HS](0[1-9]|[1-9][0-9]{1,2})$`)
	anyNumber       = regexp.MustCompile(`^[HS][0-9]+$`)
	testNamePattern = regexp.MustCompile(`^(Test|Fuzz)[^a-z]`)
)

// numberedTests finds the tests of the module by the numbers in their names: H08 -> forwarder.TestRelay_H08_...
func numberedTests(t *testing.T) map[string][]string {
	t.Helper()
	tests := make(map[string][]string)
	for _, name := range goFiles(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		addNumberedTests(tests, path.Dir(name), file)
	}
	for _, names := range tests {
		slices.Sort(names)
	}
	return tests
}

func addNumberedTests(tests map[string][]string, dir string, file *ast.File) {
	if dir == "." {
		dir = file.Name.Name
	}
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !testNamePattern.MatchString(fn.Name.Name) {
			continue
		}
		for _, number := range numbersOf(fn.Name.Name) {
			tests[number] = append(tests[number], dir+"."+fn.Name.Name)
		}
	}
}

// numbersOf: TestCodec_H80_H81_bytes -> H80, H81. A misspelled one (H8) is a number, too: it has no row and so is noticed.
func numbersOf(testName string) []string {
	parts := slices.DeleteFunc(strings.Split(testName, "_"), func(part string) bool { return !anyNumber.MatchString(part) })
	slices.Sort(parts)
	return slices.Compact(parts)
}

func heldBy(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "`" + name + "`"
	}
	return strings.Join(quoted, heldSeparator)
}

// parseTable reads the rows of the one table in the text; first and end are the lines of its first row and the line
// after its last one.
func parseTable(text string) (rows []hazard, first, end int, faults []string) {
	lines := strings.Split(text, "\n")
	head := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "| number |") })
	if head < 0 {
		return nil, 0, 0, []string{hazardsFile + " has no table that begins with | number |"}
	}
	first = head + 2
	for end = first; end < len(lines) && strings.HasPrefix(lines[end], "|"); end++ {
		cells := strings.Split(strings.Trim(lines[end], "| "), "|")
		for len(cells) < 3 {
			cells = append(cells, "")
		}
		if len(cells) > 3 {
			faults = append(faults, fmt.Sprintf("%s:%d: more than three columns", hazardsFile, end+1))
		}
		rows = append(rows, hazard{strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])})
	}
	return rows, first, end, faults
}

// checkHazards compares the table with the tests that exist.
func checkHazards(text string, tests map[string][]string) []string {
	rows, _, _, faults := parseTable(text)
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	seen := make(map[string]bool)
	for i, row := range rows {
		if !numberPattern.MatchString(row.number) {
			add("%q is not a number like H08 or S01", row.number)
			continue
		}
		if seen[row.number] {
			add("%s has two rows", row.number)
		}
		seen[row.number] = true
		if i > 0 && compareNumbers(rows[i-1].number, row.number) > 0 {
			add("%s stands behind %s: rows are sorted by number", row.number, rows[i-1].number)
		}
		for _, fault := range checkRow(row, tests[row.number]) {
			add("%s %s", row.number, fault)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(tests)) {
		if !seen[number] {
			add("%s is in the name of %s and has no row: go test -run TestHazards -update-hazards . adds it, you write what it is",
				number, strings.Join(tests[number], ", "))
		}
	}
	return faults
}

func checkRow(row hazard, tests []string) []string {
	var faults []string
	if row.text == "" {
		faults = append(faults, "does not say what the hazard is")
	}
	if reason, ok := strings.CutPrefix(row.heldBy+" ", notApplicable); ok {
		if strings.TrimSpace(reason) == "" {
			faults = append(faults, "is not applicable without a reason")
		}
		if len(tests) > 0 {
			faults = append(faults, "is not applicable, but has tests: "+strings.Join(tests, ", "))
		}
		return faults
	}
	if len(tests) == 0 {
		faults = append(faults, "has no test that carries its number, nor \""+notApplicable+"reason\"")
	}
	var listed []string
	if row.heldBy != "" {
		listed = strings.Split(row.heldBy, heldSeparator)
	}
	for i, name := range listed {
		listed[i] = strings.Trim(name, "` ")
		if !slices.Contains(tests, listed[i]) {
			faults = append(faults, "is held by "+listed[i]+", which does not exist")
		}
	}
	for _, name := range tests {
		if !slices.Contains(listed, name) {
			faults = append(faults, "does not list "+name)
		}
	}
	return faults
}

// updateTable writes the last column anew, keeps the texts, and adds rows, without a text, for new numbers.
func updateTable(text string, tests map[string][]string) string {
	rows, first, end, faults := parseTable(text)
	if len(faults) > 0 {
		return text
	}
	known := make(map[string]bool)
	for i, row := range rows {
		known[row.number] = true
		if names := tests[row.number]; len(names) > 0 || !strings.HasPrefix(row.heldBy, notApplicable) {
			rows[i].heldBy = heldBy(names)
		}
	}
	for number, names := range tests {
		if !known[number] {
			rows = append(rows, hazard{number: number, heldBy: heldBy(names)})
		}
	}
	slices.SortFunc(rows, func(a, b hazard) int { return compareNumbers(a.number, b.number) })

	lines := strings.Split(text, "\n")
	table := make([]string, len(rows))
	for i, row := range rows {
		table[i] = strings.Join(strings.Fields(fmt.Sprintf("| %s | %s | %s |", row.number, row.text, row.heldBy)), " ")
	}
	return strings.Join(slices.Concat(lines[:first], table, lines[end:]), "\n")
}

// compareNumbers: H before S, then by value, so that H104 comes behind H89.
func compareNumbers(a, b string) int {
	value := func(number string) int {
		if !numberPattern.MatchString(number) {
			return 0
		}
		n, _ := strconv.Atoi(number[1:]) // the pattern allows digits only
		return n
	}
	return cmp.Or(strings.Compare(a[:min(1, len(a))], b[:min(1, len(b))]), cmp.Compare(value(a), value(b)))
}

// TestHazards_canFail: each way in which table and tests can part is noticed.
func TestHazards_canFail(t *testing.T) {
	t.Parallel()

	table := func(rows ...string) string {
		return strings.Join(slices.Concat([]string{"# Title", "", "| number | hazard | held by |", "|---|---|---|"}, rows, []string{"", "end"}), "\n")
	}
	tests := map[string][]string{"H08": {"a.TestA_H08_x", "b.TestB_H08_H104"}, "H104": {"b.TestB_H08_H104"}}
	const (
		h08  = "| H08 | text | `a.TestA_H08_x`<br>`b.TestB_H08_H104` |"
		h104 = "| H104 | text | `b.TestB_H08_H104` |"
	)
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"complete":               {table(h08, h104), ""},
		"not applicable":         {table(h08, h104, "| S01 | text | not applicable: no cursor |"), ""},
		"no table":               {"# Title", "no table"},
		"number without row":     {table(h08), "H104 is in the name of b.TestB_H08_H104 and has no row"},
		"row without test":       {table(h08, h104, "| S01 | text | |"), "S01 has no test"},
		"test gone":              {table(h08, "| H104 | text | `b.TestB_H08_H104`<br>`b.TestGone_H104` |"), "b.TestGone_H104, which does not exist"},
		"test not listed":        {table("| H08 | text | `a.TestA_H08_x` |", h104), "H08 does not list b.TestB_H08_H104"},
		"no text":                {table("| H08 | | `a.TestA_H08_x`<br>`b.TestB_H08_H104` |", h104), "H08 does not say what"},
		"unsorted":               {table(h104, h08), "H08 stands behind H104"},
		"twice":                  {table(h08, h08, h104), "H08 has two rows"},
		"no number":              {table("| H8 | text | |", h08, h104), `"H8" is not a number`},
		"too many columns":       {table(h08, "| H104 | a | b | c |"), "more than three columns"},
		"misspelled in a test":   {table(h08, h104), "H8 is in the name of a.TestA_H8"},
		"n/a without a reason":   {table(h08, h104, "| S01 | text | not applicable: |"), "without a reason"},
		"n/a but with tests":     {table(h08, "| H104 | text | not applicable: x |"), "H104 is not applicable, but has tests"},
		"new row without a text": {updateTable(table(h08), tests), "H104 does not say what"},
	} {
		found := maps.Clone(tests)
		if name == "misspelled in a test" {
			found["H8"] = []string{"a.TestA_H8"}
		}
		faults := strings.Join(checkHazards(c.text, found), "\n")
		if (faults == "") != (c.want == "") || !strings.Contains(faults, c.want) {
			t.Errorf("%s: got %q, want %q", name, faults, c.want)
		}
	}
}

// TestHazards_update: only the last column is written; texts and what surrounds the table stay.
func TestHazards_update(t *testing.T) {
	t.Parallel()

	tests := map[string][]string{"H08": {"a.TestA_H08_x"}, "H09": {"a.TestNew_H09"}}
	before := "intro\n\n| number | hazard | held by |\n|---|---|---|\n" +
		"| S01 | skips | not applicable: no cursor |\n| H08 | lets pass | `a.TestOld_H08` |\n| H104 | gone | `a.TestOld_H104` |\n\nend\n"
	want := "intro\n\n| number | hazard | held by |\n|---|---|---|\n" +
		"| H08 | lets pass | `a.TestA_H08_x` |\n| H09 | | `a.TestNew_H09` |\n| H104 | gone | |\n| S01 | skips | not applicable: no cursor |\n\nend\n"
	if got := updateTable(before, tests); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := updateTable(want, tests); got != want {
		t.Errorf("second time: got\n%s", got)
	}
}

// TestHazards_names: which functions carry which numbers.
func TestHazards_names(t *testing.T) {
	t.Parallel()

	file, err := parser.ParseFile(token.NewFileSet(), "x_test.go", `package x
		func TestRelay_H08_order(t *testing.T) { t.Run("H09", nil) }
		func TestCodec_H81_H80_bytes(t *testing.T) {}
		func FuzzHeaders_H86(f *testing.F) {}
		func TestShort_H8(t *testing.T) {}
		func TestH07(t *testing.T) {}
		func testHelper_H01(t *testing.T) {}
		func Testimony_H02(t *testing.T) {}
		func (s *suite) TestMethod_H03(t *testing.T) {}
`, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string][]string)
	addNumberedTests(got, "room", file)
	want := map[string][]string{
		"H08": {"room.TestRelay_H08_order"},
		"H80": {"room.TestCodec_H81_H80_bytes"},
		"H81": {"room.TestCodec_H81_H80_bytes"},
		"H86": {"room.FuzzHeaders_H86"},
		"H8":  {"room.TestShort_H8"},
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
}
