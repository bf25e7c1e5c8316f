package postgres_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// openWith returns how a part of the exercise opens its database.
func openWith(driver, settings string, cfg postgres.Config) schematest.OpenFunc {
	return func(t testing.TB) (*sql.DB, schema.Database) {
		t.Helper()
		db := schematest.Open(t, driver, schematest.PostgresURL(t)+settings)
		require.NoError(t, postgres.Migrate(t.Context(), db, schema.Tables{}))
		d, err := postgres.New(db, cfg)
		require.NoError(t, err)
		return db, d
	}
}

// The whole exercise runs with two of the three ways to connect here; the tests
// below run it, part by part, with the third, that of [postgres.Connect].
func TestPostgres_Exercise(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]schematest.OpenFunc{
		"lib/pq without binary_parameters": openWith("postgres", "&binary_parameters=no", postgres.Config{}),
		"pgx":                              openWith("pgx", "", postgres.Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schematest.Exercise(t, open)
		})
	}
}

// With key_lock the insert is another statement.
func TestPostgres_Exercise_KeyLock(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		open := openWith(driver, "", postgres.Config{KeyLock: true})
		for name, part := range map[string]func(*testing.T, schematest.OpenFunc){
			"InsertIsAtomic":          schematest.InsertIsAtomic,
			"InsertFollowsSavepoints": schematest.InsertFollowsSavepoints,
			"InsertKeepsOrder":        schematest.InsertKeepsOrder,
			"InsertTakesManyMessages": schematest.InsertTakesManyMessages,
			"PayloadsSurvive":         schematest.PayloadsSurvive,
			"HeadersSurvive":          schematest.HeadersSurvive,
			"KeysSurvive":             schematest.KeysSurvive,
		} {
			t.Run(driver+"/"+name, func(t *testing.T) {
				t.Parallel()
				part(t, open)
			})
		}
	}
}

func exercise(t *testing.T, part func(*testing.T, schematest.OpenFunc)) {
	t.Helper()
	t.Parallel()
	part(t, openWith("postgres", "", postgres.Config{}))
}

func TestPostgres_H63_InsertIsAtomic(t *testing.T) { exercise(t, schematest.InsertIsAtomic) }

func TestPostgres_H65_InsertFollowsSavepoints(t *testing.T) {
	exercise(t, schematest.InsertFollowsSavepoints)
}

func TestPostgres_H14_InsertKeepsOrder(t *testing.T) { exercise(t, schematest.InsertKeepsOrder) }

func TestPostgres_H89_InsertTakesManyMessages(t *testing.T) {
	exercise(t, schematest.InsertTakesManyMessages)
}

func TestPostgres_H64_InsertRefusesFinishedTransaction(t *testing.T) {
	exercise(t, schematest.InsertRefusesFinishedTransaction)
}

func TestPostgres_H74_InsertHonoursContext(t *testing.T) {
	exercise(t, schematest.InsertHonoursContext)
}

func TestPostgres_H70_InsertNeedsOneConnection(t *testing.T) {
	exercise(t, schematest.InsertNeedsOneConnection)
}

func TestPostgres_H80_H81_H82_PayloadsSurvive(t *testing.T) {
	exercise(t, schematest.PayloadsSurvive)
}

func TestPostgres_H86_HeadersSurvive(t *testing.T) { exercise(t, schematest.HeadersSurvive) }

func TestPostgres_H84_KeysSurvive(t *testing.T) { exercise(t, schematest.KeysSurvive) }

func TestPostgres_MembershipIsCounted(t *testing.T) { exercise(t, schematest.MembershipIsCounted) }

func TestPostgres_H07_ShardsHaveOneOwner(t *testing.T) { exercise(t, schematest.ShardsHaveOneOwner) }

func TestPostgres_H50_ShardsAreTakenOverAfterTheLease(t *testing.T) {
	exercise(t, schematest.ShardsAreTakenOverAfterTheLease)
}

func TestPostgres_ShardsAreGivenBack(t *testing.T) { exercise(t, schematest.ShardsAreGivenBack) }

func TestPostgres_H01_S01_LateCommitIsClaimed(t *testing.T) {
	exercise(t, schematest.LateCommitIsClaimed)
}

func TestPostgres_H32_ClaimTellsUnreadableRows(t *testing.T) {
	exercise(t, schematest.ClaimTellsUnreadableRows)
}
func TestPostgres_ClaimKeepsLimits(t *testing.T) { exercise(t, schematest.ClaimKeepsLimits) }

func TestPostgres_H31_SentIsIdempotent(t *testing.T) { exercise(t, schematest.SentIsIdempotent) }

func TestPostgres_H08_HoldsKeepLanes(t *testing.T) { exercise(t, schematest.HoldsKeepLanes) }

func TestPostgres_H08_HoldsAreLiftedWhenEmpty(t *testing.T) {
	exercise(t, schematest.HoldsAreLiftedWhenEmpty)
}

func TestPostgres_H32_FailuresAreKept(t *testing.T) { exercise(t, schematest.FailuresAreKept) }

func TestPostgres_H50_SettleIsFenced(t *testing.T) { exercise(t, schematest.SettleIsFenced) }

func TestPostgres_H50_SettleRacesTakeover(t *testing.T) { exercise(t, schematest.SettleRacesTakeover) }

func TestPostgres_H51_InboxRemembers(t *testing.T) { exercise(t, schematest.InboxRemembers) }

func TestPostgres_H52_S33_InboxTellsHandlersApart(t *testing.T) {
	exercise(t, schematest.InboxTellsHandlersApart)
}

func TestPostgres_H39_S35_InboxForgetsRollback(t *testing.T) {
	exercise(t, schematest.InboxForgetsRollback)
}

func TestPostgres_H55_TwinsApplyOnce(t *testing.T) { exercise(t, schematest.TwinsApplyOnce) }

func TestPostgres_S32_OwnViolationIsNoDuplicate(t *testing.T) {
	exercise(t, schematest.OwnViolationIsNoDuplicate)
}

func TestPostgres_LettersAreKept(t *testing.T) { exercise(t, schematest.LettersAreKept) }

func TestPostgres_LettersAreListed(t *testing.T) { exercise(t, schematest.LettersAreListed) }

func TestPostgres_H81_LettersSurviveRedrive(t *testing.T) {
	exercise(t, schematest.LettersSurviveRedrive)
}

func TestPostgres_BuryIsRefusedWhenApplied(t *testing.T) {
	exercise(t, schematest.BuryIsRefusedWhenApplied)
}

func TestPostgres_H55_BuryRacesHandler(t *testing.T) { exercise(t, schematest.BuryRacesHandler) }

func TestPostgres_ReviveIsAtomic(t *testing.T) { exercise(t, schematest.ReviveIsAtomic) }

func TestPostgres_RevivesAreExclusive(t *testing.T) { exercise(t, schematest.RevivesAreExclusive) }

// The ways in which pgx runs statements, some of which a pooler needs.
func TestPostgres_PgxModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			for _, keyLock := range []bool{false, true} {
				db, _ := openWith("pgx", "&default_query_exec_mode="+mode, postgres.Config{})(t)
				d := open(t, db, postgres.Config{KeyLock: keyLock})
				require.NoError(t, d.Check(t.Context()))
				wholeJob(t.Context(), t, db, d)
			}
		})
	}
}
